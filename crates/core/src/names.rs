//! Values that have a name. One table for each kind of value is read in both directions.

/// The value with this name in a table of names and values.
pub(crate) fn named<T: Copy>(names: &[(&'static str, T)], name: &str) -> Option<T> {
    let entry = names.iter().find(|(known, _)| *known == name);
    entry.map(|(_, value)| *value)
}
