"""How named tuples travel between kernels: by reference.

Numba takes a tuple apart, hands over every array of it as seven arguments (a thousand for the whole state), and puts it
together again in the function called: most of what there was to compile. No kernel can change a tuple, so the address
of one copy, made when Python calls a kernel, will do. (A tuple that a kernel makes is none of these, and travels as
numba has it.)
"""

from __future__ import annotations

import hashlib
from typing import Any

from llvmlite import ir
from numba.core import cgutils, types
from numba.core.datamodel.models import PrimitiveModel
from numba.core.typing.templates import AttributeTemplate
from numba.extending import NativeValue, infer_getattr, lower_getattr_generic, register_model, typeof_impl, unbox

from replay.kernels.by_reference import is_by_reference


class Reference(types.Type):
    """A named tuple of Python, known in kernels by the address of its fields."""

    def __init__(self, tuple_class: Any, fields: tuple[types.Type, ...]) -> None:
        self.tuple_class = tuple_class
        self.fields = dict(zip(tuple_class._fields, fields, strict=True))
        digest = hashlib.sha256(repr(fields).encode()).hexdigest()[:8]
        super().__init__(f"{tuple_class.__module__}.{tuple_class.__qualname__}.{digest}")  # is part of symbols' names


_typeof_tuple = typeof_impl.dispatch(tuple)


@typeof_impl.register(tuple)
def _typeof(value: Any, context: Any) -> Any:
    if is_by_reference(type(value)):
        return Reference(type(value), tuple(typeof_impl(field, context) for field in value))
    return _typeof_tuple(value, context)


@register_model(Reference)
class _ReferenceModel(PrimitiveModel):
    def __init__(self, models: Any, reference: Reference) -> None:
        fields = []
        for field in reference.fields.values():
            kind = models.lookup(field).get_value_type()
            fields.append(kind.pointee if isinstance(field, Reference) else kind)
        super().__init__(models, reference, ir.LiteralStructType(fields).as_pointer())


@infer_getattr
class _Fields(AttributeTemplate):
    key = Reference

    def generic_resolve(self, reference: Any, name: Any) -> Any:  # type: ignore[override]  # numba has a constant there
        return reference.fields.get(name)


@lower_getattr_generic(Reference)
def _get_field(context: Any, builder: Any, reference: Reference, address: Any, name: str) -> Any:
    place = cgutils.gep_inbounds(builder, address, 0, list(reference.fields).index(name))
    return place if isinstance(reference.fields[name], Reference) else builder.load(place)


@unbox(Reference)
def _unbox(reference: Reference, value: Any, c: Any) -> NativeValue:
    address = cgutils.alloca_once(c.builder, c.context.get_value_type(reference).pointee)
    is_error = cgutils.alloca_once_value(c.builder, cgutils.false_bit)
    _unbox_fields(reference, value, address, is_error, c)
    return NativeValue(address, is_error=c.builder.load(is_error))


def _unbox_fields(reference: Reference, value: Any, address: Any, is_error: Any, c: Any) -> None:
    for i, (name, field) in enumerate(reference.fields.items()):
        place = cgutils.gep_inbounds(c.builder, address, 0, i)
        item = c.pyapi.object_getattr_string(value, name)
        if isinstance(field, Reference):
            _unbox_fields(field, item, place, is_error, c)
        else:
            native = c.unbox(field, item)
            c.builder.store(native.value, place)
            with c.builder.if_then(native.is_error, likely=False):
                c.builder.store(cgutils.true_bit, is_error)
        c.pyapi.decref(item)
