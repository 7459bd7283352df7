//! Single values of an event that have a meaning of their own.

use crate::names::named;
use crate::wire::cursor::{Cursor, Read};
use crate::wire::{Component, Components, MAX_GROUPS, RefusalReason};

/// Reads the index of a group.
pub(super) fn group(cursor: &mut Cursor<'_>) -> Read<u32> {
    let index = cursor.int()?;
    if index < 0 {
        return Err(RefusalReason::NegativeGroup);
    }
    u32::try_from(index)
        .ok()
        .filter(|&index| index < MAX_GROUPS)
        .ok_or(RefusalReason::LargeGroup)
}

/// Reads a locality: whether it is another machine.
pub(super) fn is_remote(cursor: &mut Cursor<'_>) -> Read<bool> {
    let locality = cursor.str_bytes()?;
    match [&b"LOCAL"[..], b"REMOTE"]
        .iter()
        .position(|word| locality.eq_ignore_ascii_case(word))
    {
        Some(position) => Ok(position == 1),
        None => Err(RefusalReason::MalformedEvent),
    }
}

/// Reads the name of a component.
pub(super) fn component(cursor: &mut Cursor<'_>) -> Read<Component> {
    named(&Component::NAMES, cursor.str_bytes()?).ok_or(RefusalReason::UnknownComponent)
}

/// Reads a list of components.
pub(super) fn components(cursor: &mut Cursor<'_>) -> Read<Components> {
    let mut found = Components::default();
    for _ in 0..cursor.array()? {
        found.insert(component(cursor)?);
    }
    Ok(found)
}
