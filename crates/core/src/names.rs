//! Values that have a name. One table for each kind of value is read in both directions.

/// The value with this name in a table of names and values.
pub(crate) fn named<T: Copy>(names: &[(&'static str, T)], name: &[u8]) -> Option<T> {
    let entry = names.iter().find(|(known, _)| known.as_bytes() == name);
    entry.map(|(_, value)| *value)
}

/// Names every variant of an enum.
macro_rules! names {
    ($type:ident: $($variant:ident = $name:literal),+ $(,)?) => {
        impl $type {
            /// The name of each, in the order of the enum.
            pub const NAMES: [(&'static str, Self); [$($name),+].len()] =
                [$(($name, Self::$variant)),+];

            /// The one with this name, or `None` when the name is not known.
            #[must_use]
            pub fn from_name(name: &str) -> Option<Self> {
                $crate::names::named(&Self::NAMES, name.as_bytes())
            }

            /// The name.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$variant => $name),+
                }
            }
        }
    };
}

pub(crate) use names;
