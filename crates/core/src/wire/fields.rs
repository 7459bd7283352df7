//! How both spellings of an event name its fields: the one table of the wire.

/// The events.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Tag {
    Stored,
    Removed,
    Cleared,
}

impl Tag {
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

    /// Whether the event has this field; others are ignored, like unknown ones.
    pub(super) fn has(self, field: Field) -> bool {
        match self {
            Self::Stored => true,
            Self::Removed => matches!(
                field,
                Field::Type
                    | Field::BlockHashes
                    | Field::Medium
                    | Field::Group
                    | Field::Locality
                    | Field::Ownership
            ),
            Self::Cleared => false,
        }
    }
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
    /// Position 7 of the array spelling: a LoRA name, or SGLang's map of named fields.
    LoraNameOrMetadata,
    ExtraKeys,
    Group,
    Kind,
    Window,
    Locality,
    Ownership,
    Lookahead,
    CacheSalt,
}

impl Field {
    /// The field with this name in the map spelling.
    pub(super) fn named(name: &[u8]) -> Option<Self> {
        match name {
            b"type" => Some(Self::Type),
            b"block_hashes" => Some(Self::BlockHashes),
            b"parent_block_hash" => Some(Self::Parent),
            b"token_ids" => Some(Self::Tokens),
            b"block_size" => Some(Self::BlockSize),
            b"lora_id" => Some(Self::LoraId),
            b"medium" => Some(Self::Medium),
            b"lora_name" => Some(Self::LoraName),
            b"extra_keys" => Some(Self::ExtraKeys),
            b"group_idx" => Some(Self::Group),
            b"kv_cache_spec_kind" => Some(Self::Kind),
            b"kv_cache_spec_sliding_window" => Some(Self::Window),
            b"locality" => Some(Self::Locality),
            b"ownership" => Some(Self::Ownership),
            b"lookahead_token_ids" => Some(Self::Lookahead),
            b"cache_salt" => Some(Self::CacheSalt),
            _ => None,
        }
    }
}

/// A set of fields.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Fields(u32);

impl Fields {
    fn of(fields: &[Field]) -> Self {
        Self(
            fields
                .iter()
                .fold(0, |bits, field| bits | 1 << *field as u32),
        )
    }

    /// Adds the field; false when it was there.
    pub(super) fn insert(&mut self, field: Field) -> bool {
        let bit = 1 << field as u32;
        let is_new = self.0 & bit == 0;
        self.0 |= bit;
        is_new
    }

    pub(super) fn has_all(self, others: Self) -> bool {
        self.0 & others.0 == others.0
    }
}
