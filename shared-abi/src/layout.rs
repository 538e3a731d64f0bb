// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! The macros that assert the layout of structures, and that describe them for the C header.

/// One field of a structure, as C declares it.
#[derive(Debug)]
pub struct Field {
    pub(crate) name: &'static str,
    pub(crate) c_type: &'static str,
    /// Number of elements of an array, or 0 for a scalar.
    pub(crate) elements: usize,
    pub(crate) offset: usize,
}

/// A structure that two privilege levels share.
#[derive(Debug)]
pub struct Struct {
    pub(crate) name: &'static str,
    pub(crate) size: usize,
    pub(crate) fields: &'static [Field],
}

/// Returns a field's name in C. `names` has the field's name in Rust. If its name in C differs,
/// that follows.
pub(crate) const fn c_name(names: &[&'static str]) -> &'static str {
    match names {
        [.., last] => last,
        [] => "",
    }
}

/// Asserts size and offsets of a `repr(C)` structure at compile time and describes it for C.
macro_rules! layout {
    ($ty:ty, $c_name:literal, $size:expr, {
        $($offset:literal $field:ident $(as $c_field:literal)? : $c_type:literal
            $([$elements:expr])?),+ $(,)?
    }) => {
        #[cfg(not(loom))]
        const _: () = {
            assert!(core::mem::size_of::<$ty>() == $size);
            assert!(core::mem::align_of::<$ty>() <= 8);
            $(assert!(core::mem::offset_of!($ty, $field) == $offset);)+
        };

        impl $ty {
            pub(crate) const LAYOUT: crate::layout::Struct = crate::layout::Struct {
                name: $c_name,
                size: $size,
                fields: &[$(crate::layout::Field {
                    name: crate::layout::c_name(&[stringify!($field) $(, $c_field)?]),
                    c_type: $c_type,
                    elements: 0 $(+ $elements)?,
                    offset: $offset,
                }),+],
            };
        }
    };
}

/// Does the same as [`layout!`] for memory that several privilege levels use at the same time. It
/// does not compile unless every field is [`Shared`](crate::sync::Shared).
macro_rules! shared_layout {
    ($ty:ident, $c_name:literal, $size:expr, {
        $($offset:literal $field:ident $(as $c_field:literal)? : $c_type:literal
            $([$elements:expr])?),+ $(,)?
    }) => {
        crate::layout::layout!($ty, $c_name, $size, {
            $($offset $field $(as $c_field)? : $c_type $([$elements])?),+
        });

        const _: fn(&$ty) = |memory| {
            const fn is_shared<T: crate::sync::Shared>(_: &T) {}
            let $ty { $($field),+ } = memory;
            $(is_shared($field);)+
        };

        impl crate::sync::sealed::Shared for $ty {}
    };
}
pub(crate) use {layout, shared_layout};
