"""Options that the commands of ``megatile model`` share, in one table, and what they ask for.

A command names groups of options (``@model_command(app, DIVISION, PRECISION)``) and takes an `Asked`: the
model, the machine and the keywords of a deployment. Names of aiconfigurator are taken too (``--model-path``,
``--system``, ``--backend``).
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from megatile.cli.machine import Json, Set, Trust, complete_machine, load
from megatile.core.errors import MegatileError

if TYPE_CHECKING:
    from megatile.cli.output import Commands
    from megatile.hda import HDA
    from megatile.models.deployment import Deployment
    from megatile.models.model import Model

SYSTEMS = {
    "h100_sxm": "dgx-h100", "h200_sxm": "h200-8", "b200_sxm": "b200-8", "gb200": "gb200-nvl72",
    "gb200_sxm": "gb200-nvl72", "a100_sxm": "hgx-a100",
}  # fmt: skip
"""Machines by the names that aiconfigurator gives them."""


def complete_model(incomplete: str) -> list[str]:
    from megatile.models.config import model_names

    return [name for name in model_names() if name.lower().startswith(incomplete.lower())]


def _degree(name: str, text: str) -> Any:
    return Annotated[int, typer.Option(name, help=text)]


Csv = Annotated[Path | None, typer.Option("--csv", help="Write CSV.")]
Tokens = Annotated[int, typer.Option("--isl", help="Input tokens per request.")]
TABLE: dict[str, tuple[Any, Any]] = {
    "tp": (_degree("--tp", "Tensor parallel size."), 1),
    "pp": (_degree("--pp", "Pipeline parallel size."), 1),
    "ep": (_degree("--ep", "Expert parallel size."), 1),
    "attention_dp": (
        _degree("--attention-dp", "Data parallel size of attention."), 1,
    ),
    "cp": (_degree("--cp", "Context parallel size."), 1),
    "dp": (_degree("--dp", "Data parallel size (replicas)."), 1),
    "dtype": (
        Annotated[
            str | None,
            typer.Option("-d", "--dtype", help="bf16, f16, fp8, fp8_block, int4, fp4; default: the config."),
        ],
        None,
    ),
    "kv_dtype": (
        Annotated[str | None, typer.Option("--kv-dtype", help="KV cache type: bf16 or fp8.")], None,
    ),
    "library": (
        Annotated[
            str,
            typer.Option(
                "--library", "--backend", help="vllm, trtllm, sglang or torch."
            ),
        ],
        "vllm",
    ),
    "graph": (
        Annotated[
            bool | None,
            typer.Option("--graph/--eager", help="Run decode steps as captured graphs (torch: eager)."),
        ],
        None,
    ),
    "memory_share": (
        Annotated[
            float | None, typer.Option("--memory-share", help="Share of device memory for the engine.")
        ],
        None,
    ),
    "max_num_seqs": (
        Annotated[int | None, typer.Option("--max-num-seqs", help="Most concurrent requests.")],
        None,
    ),
    "token_budget": (
        Annotated[int | None, typer.Option("--token-budget", help="Maximum of new tokens per step.")], None,
    ),
    "isl": (Tokens, 1024),
    "osl": (Annotated[int, typer.Option("--osl", help="Output tokens per request.")], 1024),
    "csv_file": (Csv, None),
}  # fmt: skip
"""Options by name: their type and help, and their default."""
DIVISION = ("tp", "pp", "ep", "attention_dp", "cp", "dp")
PRECISION = ("dtype", "kv_dtype", "library", "graph")
ENGINE = ("memory_share", "max_num_seqs", "token_budget")
LENGTHS = ("isl", "osl")
_CONFIG = Annotated[
    str | None,
    typer.Argument(
        help="A shipped model ('megatile model list') or a config.json.", autocompletion=complete_model
    ),
]
_MODEL_PATH = Annotated[str | None, typer.Option("--model-path", help="Same as CONFIG.")]
_MACHINE = Annotated[
    str,
    typer.Option(
        "-m", "--machine", "--system", autocompletion=complete_machine,
        help="A shipped machine or a YAML file; also h100_sxm, h200_sxm, b200_sxm …",
    ),
]  # fmt: skip


class Asked(NamedTuple):
    """What every command of a model is asked about."""

    model: Model
    hda: HDA
    division: dict[str, Any]
    """Keywords of `Model.deployment`."""
    isl: int
    osl: int
    csv_file: Path | None
    json: bool

    def deployment(self) -> Deployment:
        return self.model.deployment(self.hda, **self.division)


def model_command(
    app: Commands, *groups: str, name: str | None = None, machine: str = "dgx-h100"
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Register a command whose first parameter is an `Asked` of these options; its own ones follow."""

    def register(function: Callable[..., None]) -> Callable[..., None]:
        _, *own = inspect.signature(function, eval_str=True).parameters.values()
        shared = {
            "config": (_CONFIG, None),
            "model_path": (_MODEL_PATH, None),
            "machine": (_MACHINE, machine),
        }
        shared |= {option: TABLE[option] for option in groups}
        last = {"settings": (Set, None), "trust": (Trust, False), "json": (Json, False)}
        keyword = inspect.Parameter.KEYWORD_ONLY

        def made(table: dict[str, tuple[Any, Any]]) -> list[inspect.Parameter]:
            return [inspect.Parameter(n, keyword, annotation=a, default=d) for n, (a, d) in table.items()]

        def command(**given: Any) -> None:
            values = {key: given.pop(key) for key in (*shared, *last)}
            function(_asked(values), **given)

        command.__doc__, command.__name__ = function.__doc__, function.__name__
        own = [p.replace(kind=keyword) for p in own]
        signature = inspect.Signature([*made(shared), *own, *made(last)])
        command.__signature__ = signature  # type: ignore[attr-defined]
        command.__annotations__ = {n: p.annotation for n, p in signature.parameters.items()}
        app.command(name)(command)
        return function

    return register


def _asked(given: dict[str, Any]) -> Asked:
    from megatile.models.model import model

    config, path, name = given["config"], given["model_path"], given["machine"]
    if (config is None) == (path is None):
        what = "no model is given" if config is None else "the model is given twice"
        raise MegatileError(what, advice="megatile model predict Llama-3.1-70B, or --model-path FOLDER")
    for option, least in (("isl", 1), ("osl", 0)):
        if option in given and given[option] < least:
            raise MegatileError(f"--{option} must be at least {least}, got {given[option]}")
    hda = load(SYSTEMS.get(name, name), given["settings"], given["trust"])
    keys, found = (*DIVISION, *PRECISION, *ENGINE), model(config if config is not None else path)
    tokens, positions = given.get("isl", 0) + given.get("osl", 0), found.config.positions
    if 0 < positions < tokens:
        print(f"note: {tokens} tokens exceed the config's {positions} positions", file=sys.stderr)
    return Asked(
        found, hda, {k: given[k] for k in keys if k in given},
        given.get("isl", 1024), given.get("osl", 1024), given.get("csv_file"), given["json"],
    )  # fmt: skip
