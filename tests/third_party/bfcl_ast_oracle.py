"""What BFCL's AST checker says of calls: a script, `bfcl_ast_oracle.py PACKAGE`, in a process of its own.

Standard input has one JSON object a line, `{"functions", "calls", "answer", "category"}`; standard output
one a line, `{"valid", "error"}`. The checker asks for the table of all models only to learn how each writes
dots in names; that table imports every vendor's client, so a table of one model stands in for it.
"""

from __future__ import annotations

import json
import sys
from types import ModuleType, SimpleNamespace


def main(package: str) -> None:
    sys.path.insert(0, package)
    table = ModuleType("bfcl_eval.constants.model_config")
    table.MODEL_CONFIG_MAPPING = {"policy": SimpleNamespace(underscore_to_dot=False)}  # type: ignore[attr-defined]
    sys.modules[table.__name__] = table
    from bfcl_eval.constants.enums import Language  # type: ignore[import-not-found]
    from bfcl_eval.eval_checker.ast_eval.ast_checker import ast_checker  # type: ignore[import-not-found]

    for line in sys.stdin:
        case = json.loads(line)
        try:
            verdict = ast_checker(
                case["functions"], case["calls"], case["answer"], Language.PYTHON, case["category"], "policy"
            )
            said = {"valid": verdict["valid"], "error": verdict.get("error_type")}
        except Exception as error:  # noqa: BLE001 - boundary: the checker raises on what it does not foresee
            said = {"valid": False, "error": f"raises {type(error).__name__}"}
        print(json.dumps(said))


if __name__ == "__main__":
    main(sys.argv[1])
