# The wheels of the lock, each checked against its hash; the project is then built and installed from these alone.
FROM python:3.13-slim AS build
ENV PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1 PIP_ROOT_USER_ACTION=ignore
WORKDIR /src
COPY requirements.lock ./
RUN pip download --quiet --no-deps --require-hashes --requirement requirements.lock --dest /wheels
COPY pyproject.toml ./
COPY app app
COPY containers containers
COPY persistence persistence
COPY policy policy
RUN python -m venv --without-pip /opt/beforehand \
    && pip --python /opt/beforehand install --quiet --no-index --find-links /wheels '.[anthropic,mcp,openai]'

FROM python:3.13-slim
COPY --from=build /opt/beforehand /opt/beforehand
ENV PATH=/opt/beforehand/bin:$PATH PYTHONUNBUFFERED=1
RUN useradd --uid 10001 --home-dir /var/lib/beforehand --create-home beforehand
# The store and the workspace lie here by default: mount a volume, or they end with the container.
WORKDIR /var/lib/beforehand
VOLUME /var/lib/beforehand
USER beforehand
ENTRYPOINT ["beforehand"]
