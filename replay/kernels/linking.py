"""How helpers become part of a kernel's machine code: all of it is optimised once, inside the kernel.

Numba optimises a function together with all it calls, makes machine code of that, and does so again for every caller up
to the kernel: a helper ten calls deep is compiled ten times. Here a helper stops at unoptimised code. A kernel takes in
that of all its helpers as its own, so the compiler also drops the arguments that nobody reads.
"""

from __future__ import annotations

from typing import Any

from numba import _dynfunc  # type: ignore[attr-defined]  # in C, without types
from numba.core.codegen import JITCodeLibrary
from numba.core.compiler import Compiler
from numba.core.compiler_machinery import register_pass
from numba.core.typed_passes import NativeLowering


class _PartLibrary(JITCodeLibrary):
    """Unoptimised code of a helper."""

    def _optimize_functions(self, module: Any) -> None:
        module.data_layout = self._codegen._data_layout

    def finalize(self) -> None:
        self._raise_if_finalized()
        self._finalized = True


class _WholeLibrary(JITCodeLibrary):
    """Code of a kernel with all its helpers."""

    def add_linking_library(self, library: Any) -> None:
        super().add_linking_library(library)
        if isinstance(library, _PartLibrary):
            for other in library._linking_libraries:
                if other not in self._linking_libraries:
                    self.add_linking_library(other)

    def _optimize_final_module(self) -> None:
        for function in self._final_module.functions:
            if function.linkage.name == "linkonce_odr":  # taken in from elsewhere
                function.linkage = "internal"
        # Numba's second, cheaper round beforehand serves reference counts, and the loops are too short for vectors.
        passes, builder = self._codegen._module_pass_manager(loop_vectorize=False, slp_vectorize=False)
        passes.run(self._final_module, builder)


@register_pass(mutates_CFG=True, analysis_only=False)
class _LowerPart(NativeLowering):
    """Makes code of a helper that nothing but a kernel can run."""

    _name = "lower_part"

    def run_pass(self, state: Any) -> bool:
        state.library = _PartLibrary(state.targetctx.codegen(), state.func_id.func_qualname)
        state.flags.no_compile = True
        super().run_pass(state)
        result = state["cr"]
        module, name = result.fndesc.lookup_module(), state.func_id.func_name
        no_entry = _dynfunc.make_function(module, name, "", 0, result.env, (state.library,))
        state.targetctx.insert_user_function(no_entry, result.fndesc, [state.library])
        state["cr"] = result._replace(cfunc=no_entry)
        return True


@register_pass(mutates_CFG=True, analysis_only=False)
class _LowerWhole(NativeLowering):
    """Makes machine code of a kernel."""

    _name = "lower_whole"

    def run_pass(self, state: Any) -> bool:
        state.library = _WholeLibrary(state.targetctx.codegen(), state.func_id.func_qualname)
        state.library.enable_object_caching()
        return bool(super().run_pass(state))


class _LoweringCompiler(Compiler):
    """Numba's compiler with another last step."""

    lowering: type[NativeLowering]

    def define_pipelines(self) -> list[Any]:
        pipelines: list[Any] = super().define_pipelines()
        for pipeline in pipelines:
            pipeline.passes = [
                (self.lowering if step is NativeLowering else step, text) for step, text in pipeline.passes
            ]
            pipeline.finalize()
        return pipelines


class PartCompiler(_LoweringCompiler):
    """Compiles a helper."""

    lowering = _LowerPart


class WholeCompiler(_LoweringCompiler):
    """Compiles a kernel."""

    lowering = _LowerWhole
