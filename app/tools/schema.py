"""Makes a tool of a plain typed function: what the model is told of it, and how arguments and values are checked."""

import inspect
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Annotated, Any, TypeAlias, TypedDict, Unpack, get_args, get_origin, overload

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError, create_model
from pydantic.json_schema import GenerateJsonSchema
from pydantic_core import PydanticSerializationError

from app.session.errors import ConfigurationError
from app.session.recovery import Reconciled, RecordedCall
from app.session.values import encode
from app.tools.body import run_in_thread
from app.tools.declaration import check_declaration
from app.tools.output import pointer, stored_text
from app.tools.signature import UNDECLARED, Scope, Signature, plain_function, read_signature
from app.tools.types import Effects, InvalidArguments, InvalidOutput, Tool, ToolExecution

ParallelSafe: TypeAlias = bool | Callable[[Any], object]
Reconcile: TypeAlias = Callable[[RecordedCall], Awaitable[Reconciled]]


class Declaration(TypedDict, total=False):
    """What can be said of a tool besides its function."""

    name: str | None
    description: str | None
    effects: Effects
    parallel_safe: ParallelSafe
    timeout_s: float | None
    reconcile: Reconcile | None


@overload
def tool(fn: Callable[..., Any], **declaration: Unpack[Declaration]) -> "FunctionTool": ...
@overload
def tool(fn: None = None, **declaration: Unpack[Declaration]) -> "Callable[[Callable[..., Any]], FunctionTool]": ...
def tool(
    fn: Callable[..., Any] | None = None,
    *,
    name: str | None = None,
    description: str | None = None,
    effects: Effects = "side_effect",
    parallel_safe: ParallelSafe = False,
    timeout_s: float | None = None,
    reconcile: Reconcile | None = None,
) -> "FunctionTool | Callable[[Callable[..., Any]], FunctionTool]":
    """Make a tool of a function, as a decorator or a call; the docstring is what the model is told of it.

    A parameter is described by a text in its annotation, `Annotated[str, "where to look"]`, or by pydantic's Field. One
    annotated ToolExecution is given the execution and not told. `parallel_safe` is True, False, or a function of the
    arguments as parsed from JSON; `timeout_s` is in seconds. Raises ConfigurationError, naming tool and parameter.
    """
    scope = Scope.of_caller()

    def make(function: Callable[..., Any]) -> FunctionTool:
        own_name = getattr(function, "__name__", None) if name is None else name
        check_declaration(own_name, effects, timeout_s, reconcile)
        if not (isinstance(parallel_safe, bool) or callable(parallel_safe)):
            raise ConfigurationError(f"tool {own_name!r}: parallel_safe is True, False or a function of the arguments")
        return FunctionTool(
            str(own_name),
            (inspect.getdoc(plain_function(function)) or "") if description is None else description,
            function,
            read_signature(str(own_name), function, scope),
            effects=effects,
            parallel_safe=parallel_safe,
            timeout_s=timeout_s,
            reconcile=reconcile,
        )

    return make if fn is None else make(fn)


def as_tool(obj: object) -> Tool:
    """A function as a tool; a tool as it is. Raises ConfigurationError for anything else."""
    lacking = [part for part in _PARTS if not hasattr(obj, part)]
    if not lacking:
        return obj  # type: ignore[return-value]  # it has all the parts; ToolSet looks at their values
    if callable(obj) and not inspect.isclass(obj):
        return tool(obj)
    raise ConfigurationError(f"{obj!r} is no tool: it is no function, and an object lacks {', '.join(lacking)}")


_PARTS = (  # of the Tool protocol
    *("name", "description", "input_schema", "effects", "timeout_s"),
    *("reconcile", "is_parallel_safe", "validate", "run", "to_json"),
)


class FunctionTool:
    """A tool whose body is `function`; calling the tool calls that."""

    def __init__(
        self,
        name: str,
        description: str,
        function: Callable[..., Any],
        signature: Signature,
        *,
        effects: Effects,
        parallel_safe: ParallelSafe,
        timeout_s: float | None,
        reconcile: Reconcile | None,
    ) -> None:
        self.name = name
        self.description = description
        self.function = function
        self.effects: Effects = effects
        self.timeout_s = timeout_s
        self.reconcile = reconcile
        self._parallel_safe = parallel_safe
        self._signature = signature
        self._arguments = _Arguments(name, signature)
        self.input_schema: Mapping[str, Any] = self._arguments.schema
        self._output = _Output(name, signature.returns)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.function(*args, **kwargs)

    def __repr__(self) -> str:
        return f"<FunctionTool {self.name}: {self.effects}>"

    def is_parallel_safe(self, arguments: Any) -> object:
        return self._parallel_safe(arguments) if callable(self._parallel_safe) else self._parallel_safe

    def validate(self, arguments: Any) -> dict[str, Any]:
        """The arguments by name, defaults filled in. Raises InvalidArguments."""
        return self._arguments.validate(arguments)

    async def run(self, validated: dict[str, Any], execution: ToolExecution) -> Any:
        call = partial(self.function, **validated, **dict.fromkeys(self._signature.execution, execution))
        if self._signature.is_async:
            return await call()
        return await run_in_thread(f"tool {self.name}", call)

    def to_json(self, value: Any) -> Any:
        """Raises InvalidOutput."""
        return self._output.to_json(value)


class _Arguments:
    """The parameters as a pydantic model. Its fields are numbered and the names aliases: a parameter may be `json`."""

    def __init__(self, tool_name: str, signature: Signature) -> None:
        self._names = {f"p{n}": parameter.name for n, parameter in enumerate(signature.parameters)}
        fields: dict[str, Any] = {}
        for field, parameter in zip(self._names, signature.parameters, strict=True):
            default = ... if parameter.default is UNDECLARED else parameter.default
            fields[field] = (Annotated[_described(parameter.annotation), Field(alias=parameter.name)], default)
            self._build(f"parameter {parameter.name!r} of tool {tool_name!r}", {field: fields[field]})  # to name it
        self._model, self.schema = self._build(f"tool {tool_name!r}", fields)

    def _build(self, what: str, fields: dict[str, Any]) -> tuple[type[BaseModel], dict[str, Any]]:
        try:
            model: type[BaseModel] = create_model("Arguments", __config__=ConfigDict(extra="forbid"), **fields)
            schema = model.model_json_schema(schema_generator=_PlainSchema)
        except Exception as error:  # pydantic has several families of errors for what it cannot express
            raise ConfigurationError(f"{what} has no JSON schema: {error}") from error
        schema.pop("title", None)
        return model, schema

    def validate(self, arguments: Any) -> dict[str, Any]:
        try:
            model = self._validate(arguments)
        except ValidationError as error:
            raise InvalidArguments(_problems(error, arguments)) from error
        return {name: getattr(model, field) for field, name in self._names.items()}

    def _validate(self, arguments: Any) -> BaseModel:
        try:
            return self._model.model_validate_json(encode(arguments))
        except ValidationError as error:
            first = error.errors(include_url=False, include_context=False, include_input=False)[0]
            if first["type"] != "json_invalid" or first["loc"]:
                raise
        # It is JSON, but of a kind that pydantic's parser does not take: unpaired surrogates, 200 levels, 4300 digits.
        return self._model.model_validate(arguments)


class _Output:
    """The declared return type. Nothing declared, or Any: a value has to be JSON as it is."""

    def __init__(self, tool_name: str, returns: Any) -> None:
        self._adapter: TypeAdapter[list[Any]] | None = None
        self._is_json_as_it_is = True
        if returns in (UNDECLARED, Any, object):
            return
        # Inside a list, since a model's own configuration would win over ours, and turn an infinity into null.
        config = ConfigDict(ser_json_inf_nan="constants")
        try:
            self._adapter = TypeAdapter(list[returns], config=config)
            self._is_json_as_it_is = "serialization" not in repr(self._adapter.core_schema)
        except Exception as error:  # as above
            raise ConfigurationError(f"the return type of tool {tool_name!r} has no JSON form: {error}") from error

    def to_json(self, value: Any) -> Any:
        if self._adapter is None:
            stored_text(value)
            return value
        try:
            checked = self._adapter.validate_python([value])
        except ValidationError as error:
            raise InvalidOutput(_problems(error, value, skip=1)) from error
        if self._is_json_as_it_is:
            try:
                stored_text(checked[0])
                return checked[0]
            except InvalidOutput:  # not JSON yet. What is must not go through pydantic: it replaces surrogates in keys
                pass
        try:
            dumped = self._adapter.dump_python(checked, mode="json", by_alias=True, warnings="error")
        except (PydanticSerializationError, UnicodeError) as error:  # their texts quote the value
            raise InvalidOutput(f'at "": not what the return type declares ({type(error).__name__})') from error
        stored_text(dumped[0])
        return dumped[0]


def _described(annotation: Any) -> Any:
    """The annotation with a text in it made a description; one that Field gives wins."""
    if get_origin(annotation) is not Annotated:
        return annotation
    bare, *notes = get_args(annotation)
    texts = [Field(description=note) for note in notes if isinstance(note, str)]
    return Annotated[(bare, *texts[:1], *(note for note in notes if not isinstance(note, str)))]


def _problems(error: ValidationError, value: Any, skip: int = 0) -> str:
    """Every problem with the JSON pointer of its place in `value`; the first `skip` parts of a place are none of it."""
    return "; ".join(
        f'at "{pointer(value, problem["loc"][skip:], is_missing="missing" in problem["type"])}": {problem["msg"]}'
        for problem in error.errors(include_url=False, include_context=False, include_input=False)
    )


class _PlainSchema(GenerateJsonSchema):
    """Without titles, which only repeat the names; defaults that are no JSON are left out in silence."""

    ignored_warning_kinds = frozenset({"skipped-choice", "non-serializable-default"})  # type: ignore[assignment]

    def field_title_should_be_set(self, schema: Any) -> bool:
        return False
