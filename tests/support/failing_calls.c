/* Calls that change files below one directory, counted, and the n-th of them made to fail: see failing_calls.py.
   Preloaded into a process, where nothing happens before `faults_begin`. Syncs are counted and not done: they are slow,
   and the machine stays up. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/types.h>
#include <unistd.h>

enum { WRITE = 'w', SYNC = 's', TRUNCATE = 't', CREATE = 'c', UNLINK = 'u', RENAME = 'r' };
enum verdict { PASS, FAIL, SHORT, TORN, LAST };

static char directory[4096], action[16], seen[1000];
static int nth = -1;
static volatile int count;

/* From now on; with nth 0 nothing fails. */
void faults_begin(const char *below, int n, const char *what) {
    snprintf(directory, sizeof directory, "%s/", below);
    snprintf(action, sizeof action, "%s", what);
    nth = n;
}

/* What was called so far, a letter for each call. */
const char *faults_seen(void) { return seen; }

static int is_below(int at, const char *path) {
    char link[64], full[8192] = "";
    if (nth < 0) return 0;
    if (at != AT_FDCWD && !(path && path[0] == '/')) {
        snprintf(link, sizeof link, "/proc/self/fd/%d", at);
        ssize_t length = readlink(link, full, 4095);
        if (length < 0) return 0;
        full[length] = 0;
        strcat(full, "/");
    }
    if (path) strncat(full, path, 4000);
    return strncmp(full, directory, strlen(directory)) == 0;
}

static void end(void) { kill(getpid(), SIGKILL); }

static enum verdict meets(char call) {
    int n = __sync_add_and_fetch(&count, 1);
    if (n < (int)sizeof seen) seen[n - 1] = call;
    int goes_on = n > nth && (!strcmp(action, "broken") || (!strcmp(action, "full") && strchr("wc", call)));
    if (nth == 0 || (n != nth && !goes_on)) return PASS;
    if (n == nth && call == WRITE && (!strcmp(action, "short") || !strcmp(action, "full"))) return SHORT;
    if (!strcmp(action, "torn")) return TORN;
    if (!strcmp(action, "before")) end();
    if (!strcmp(action, "after")) return LAST;
    errno = !strcmp(action, "full") ? ENOSPC : EIO;
    return FAIL;
}

#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))
#define COUNTED(kind, below, type, name, ...)                 \
    {                                                         \
        enum verdict met = (below) ? meets(kind) : PASS;      \
        if (met == FAIL) return -1;                           \
        type result = REAL(name)(__VA_ARGS__);                \
        if (met == LAST) end();                               \
        return result;                                        \
    }
#define WRITES(name, parameters, ...)                                          \
    ssize_t name parameters {                                                  \
        enum verdict met = is_below(file, NULL) ? meets(WRITE) : PASS;         \
        if (met == FAIL) return -1;                                            \
        if (met == SHORT || met == TORN) size = size > 1 ? size / 2 : size;    \
        ssize_t written = REAL(name)(__VA_ARGS__);                             \
        if (met == TORN || met == LAST) end();                                 \
        return written;                                                        \
    }

WRITES(write, (int file, const void *data, size_t size), file, data, size)
WRITES(pwrite, (int file, const void *data, size_t size, off_t at), file, data, size, at)
WRITES(pwrite64, (int file, const void *data, size_t size, off64_t at), file, data, size, at)

static int synced(int file) {
    enum verdict met = is_below(file, NULL) ? meets(SYNC) : PASS;
    if (met == LAST) end();
    return met == FAIL ? -1 : 0;
}
int fsync(int file) { return synced(file); }
int fdatasync(int file) { return synced(file); }

int ftruncate(int file, off_t size) COUNTED(TRUNCATE, is_below(file, NULL), int, ftruncate, file, size)
int ftruncate64(int file, off64_t size) COUNTED(TRUNCATE, is_below(file, NULL), int, ftruncate64, file, size)
int unlink(const char *path) COUNTED(UNLINK, is_below(AT_FDCWD, path), int, unlink, path)
int unlinkat(int at, const char *path, int flags)
    COUNTED(UNLINK, is_below(at, path), int, unlinkat, at, path, flags)
int rename(const char *from, const char *to) COUNTED(RENAME, is_below(AT_FDCWD, to), int, rename, from, to)
int renameat(int at, const char *from, int to_at, const char *to)
    COUNTED(RENAME, is_below(to_at, to), int, renameat, at, from, to_at, to)

/* Opening matters where it may create a file. */
#define OPENS(name, parameters, at, ...)                                                               \
    int name parameters {                                                                              \
        va_list rest;                                                                                  \
        va_start(rest, flags);                                                                         \
        int mode = flags & O_CREAT ? va_arg(rest, int) : 0;                                            \
        va_end(rest);                                                                                  \
        COUNTED(CREATE, (flags & O_CREAT) && is_below(at, path), int, name, __VA_ARGS__, flags, mode)  \
    }
OPENS(open, (const char *path, int flags, ...), AT_FDCWD, path)
OPENS(open64, (const char *path, int flags, ...), AT_FDCWD, path)
OPENS(openat, (int at, const char *path, int flags, ...), at, at, path)
OPENS(openat64, (int at, const char *path, int flags, ...), at, at, path)
