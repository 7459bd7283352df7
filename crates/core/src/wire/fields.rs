//! The table of the wire: how both spellings of an event name its fields.

use crate::wire::RefusalReason;
use crate::wire::cursor::{Cursor, Read};

/// The events.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum EventTag {
    Stored,
    Removed,
    Cleared,
}

impl EventTag {
    pub(super) fn named(name: &[u8]) -> Option<Self> {
        match name {
            b"BlockStored" => Some(Self::Stored),
            b"BlockRemoved" => Some(Self::Removed),
            b"AllBlocksCleared" => Some(Self::Cleared),
            _ => None,
        }
    }

    /// The fields of the array spelling after the tag; later positions are ignored.
    pub(super) fn positions(self) -> &'static [Field] {
        match self {
            Self::Stored => &[
                Field::BlockHashes,
                Field::Parent,
                Field::Tokens,
                Field::BlockSize,
                Field::LoraId,
                Field::Medium,
                Field::LoraNameOrMetadata,
                Field::ExtraKeys,
                Field::Group,
                Field::Kind,
                Field::Window,
            ],
            Self::Removed => &[Field::BlockHashes, Field::Medium, Field::Group],
            Self::Cleared => &[],
        }
    }

    /// The fields without which the event cannot be read.
    pub(super) fn required(self) -> Fields {
        match self {
            Self::Stored => Fields::of(&[Field::BlockHashes, Field::Tokens, Field::BlockSize]),
            Self::Removed => Fields::of(&[Field::BlockHashes]),
            Self::Cleared => Fields::default(),
        }
    }

    /// The fields in which events differ from those before them, as engines write them: first, and the
    /// one named here last.
    pub(super) const fn own(self) -> (Fields, Field) {
        match self {
            Self::Stored => {
                let own = Fields::of(&[
                    Field::Type,
                    Field::BlockHashes,
                    Field::Parent,
                    Field::Tokens,
                    Field::BlockSize,
                ]);
                (own, Field::BlockSize)
            }
            Self::Removed | Self::Cleared => {
                let own = Fields::of(&[Field::Type, Field::BlockHashes]);
                (own, Field::BlockHashes)
            }
        }
    }

    /// The fields of the map spelling in the order in which vLLM declares them, each under its
    /// name as MessagePack writes it: the first byte is the head of the text. Others are ignored.
    fn names(self) -> &'static [(&'static [u8], Field)] {
        match self {
            Self::Stored => &[
                (b"\xa4type", Field::Type),
                (b"\xacblock_hashes", Field::BlockHashes),
                (b"\xb1parent_block_hash", Field::Parent),
                (b"\xa9token_ids", Field::Tokens),
                (b"\xaablock_size", Field::BlockSize),
                (b"\xa7lora_id", Field::LoraId),
                (b"\xa6medium", Field::Medium),
                (b"\xa9lora_name", Field::LoraName),
                (b"\xaaextra_keys", Field::ExtraKeys),
                (b"\xa9group_idx", Field::Group),
                (b"\xb2kv_cache_spec_kind", Field::Kind),
                (b"\xbckv_cache_spec_sliding_window", Field::Window),
                (b"\xa8locality", Field::Locality),
                (b"\xa9ownership", Field::Ownership),
                (b"\xb3lookahead_token_ids", Field::Lookahead),
                (b"\xaacache_salt", Field::CacheSalt),
                (b"\xaecomponent_type", Field::Component),
                (b"\xafcomponent_types", Field::Components),
                (b"\xa7mm_keys", Field::MmKeys),
            ],
            Self::Removed => &[
                (b"\xa4type", Field::Type),
                (b"\xacblock_hashes", Field::BlockHashes),
                (b"\xa6medium", Field::Medium),
                (b"\xa9group_idx", Field::Group),
                (b"\xa8locality", Field::Locality),
                (b"\xa9ownership", Field::Ownership),
                (b"\xaecomponent_type", Field::Component),
            ],
            Self::Cleared => &[],
        }
    }

    /// Steps over the key of a map entry: its field, `None` when the event has no such field.
    ///
    /// Looks first from `next` on, and moves `next` past what was found: engines write in order.
    pub(super) fn take_key(self, cursor: &mut Cursor<'_>, next: &mut usize) -> Read<Option<Field>> {
        let names = self.names();
        for (at, (name, field)) in names.iter().enumerate().skip(*next) {
            if cursor.take_same(name) {
                *next = at + 1;
                return Ok(Some(*field));
            }
        }
        let Some(key) = take_any_key(cursor)? else {
            return Ok(None);
        };
        Ok(names
            .iter()
            .find(|(name, _)| &name[1..] == key)
            .map(|(_, field)| *field))
    }

    /// Steps over the tag if it is the first entry of a map, as engines write it.
    pub(super) fn take_first(cursor: &mut Cursor<'_>) -> Option<Self> {
        let entries: [(&[u8], Self); 2] = [
            (b"\xa4type\xabBlockStored", Self::Stored),
            (b"\xa4type\xacBlockRemoved", Self::Removed),
        ];
        let first = entries.iter().find(|(entry, _)| cursor.take_same(entry));
        first.map(|(_, tag)| *tag)
    }

    /// Looks through a map of `len` entries for its tag.
    pub(super) fn find(mut cursor: Cursor<'_>, len: u32) -> Read<Self> {
        for _ in 0..len {
            if take_any_key(&mut cursor)? == Some(b"type") {
                return Self::named(cursor.str_bytes()?).ok_or(RefusalReason::UnknownEvent);
            }
            cursor.skip()?;
        }
        Err(RefusalReason::MalformedEvent)
    }
}

/// Steps over a key; `None` if it is not a text, because every field's name is one.
fn take_any_key<'p>(cursor: &mut Cursor<'p>) -> Read<Option<&'p [u8]>> {
    let mut ahead = *cursor;
    if let Ok(key) = ahead.str_bytes() {
        *cursor = ahead;
        return Ok(Some(key));
    }
    cursor.skip().map(|()| None)
}

/// The fields that are read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Field {
    Type,
    BlockHashes,
    Parent,
    Tokens,
    BlockSize,
    LoraId,
    Medium,
    LoraName,
    ExtraKeys,
    Group,
    Kind,
    Window,
    Locality,
    Ownership,
    Lookahead,
    CacheSalt,
    /// In the array spelling it stands before the medium, if it stands there.
    Component,
    Components,
    /// TensorRT-LLM's keys of media, a list for each block.
    MmKeys,
    /// Position 7 of the array spelling: a LoRA name, or SGLang's map of named fields.
    LoraNameOrMetadata,
}

/// A set of fields.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Fields(u32);

impl Fields {
    const fn of(fields: &[Field]) -> Self {
        let (mut bits, mut at) = (0, 0);
        while at < fields.len() {
            bits |= 1 << fields[at] as u32;
            at += 1;
        }
        Self(bits)
    }

    /// Adds the field; false if it was already there.
    pub(super) fn insert(&mut self, field: Field) -> bool {
        let bit = 1 << field as u32;
        let is_new = self.0 & bit == 0;
        self.0 |= bit;
        is_new
    }

    pub(super) fn has(self, field: Field) -> bool {
        self.0 & 1 << field as u32 != 0
    }

    pub(super) fn has_all(self, others: Self) -> bool {
        self.0 & others.0 == others.0
    }

    /// Those that are in both sets.
    pub(super) fn within(self, others: Self) -> Self {
        Self(self.0 & others.0)
    }
}
