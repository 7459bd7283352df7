//! Whether stores have the block sizes that the operator configured.
//!
//! A smaller block than the configured one may be a part of a block. An engine stores parts one by
//! one, and each ends with a hash block. So a store of several smaller blocks, or of one that ends
//! inside a hash block, is not of parts: the configured size is not the group's. There is one
//! exception: a cache beside the group may share its index. Then stores of the configured size come
//! too, and from the first of them on nothing is contradicted.

use crate::divisors::gcd;
use crate::spec::Topology;
use crate::wire::MAX_GROUPS;
use serde::{Deserialize, Serialize};

/// What the stores of a group have shown of its configured size.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
enum SizesSeen {
    /// No more than parts of blocks.
    #[default]
    Nothing,
    /// Smaller blocks that are no parts.
    Smaller,
    /// The configured size.
    Own,
}

/// What stores have shown of the configured sizes, by group.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub(in crate::fleet) struct Sizes {
    groups: Vec<SizesSeen>,
    /// By group, the greatest common divisor of the sizes of its parts of blocks; 0 without any.
    parts: Vec<u32>,
}

/// What a store tells of the configured sizes that was not known.
#[derive(Debug, Clone, Copy, Default)]
pub(in crate::fleet) struct SizeNews {
    /// It is the first that contradicts the size of its group.
    pub(in crate::fleet) contradicts: bool,
    /// It is of a smaller part of a block than any before.
    pub(in crate::fleet) tells_of_parts: bool,
}

impl Sizes {
    /// Compares a store of so many tokens, in blocks of `size`, with what is configured.
    pub(in crate::fleet) fn note(
        &mut self,
        topology: &Topology,
        group: u16,
        (size, tokens): (u32, u32),
    ) -> SizeNews {
        let own = (topology.groups.get(usize::from(group))).map_or(0, |g| g.block_size);
        if size == 0 || tokens < size || size > own {
            return SizeNews::default();
        }
        let tells_of_parts = size < own && self.note_part(group, size);
        let is_part = tokens / 2 < size && size.is_multiple_of(topology.hash_block_size);
        let contradicts = match (size == own, is_part) {
            (true, _) => self.show(group, SizesSeen::Own),
            (false, false) => self.show(group, SizesSeen::Smaller),
            (false, true) => false,
        };
        SizeNews {
            contradicts,
            tells_of_parts,
        }
    }

    /// Whether what was read from a snapshot is of groups that an engine can have.
    pub(in crate::fleet) fn is_sound(&self) -> bool {
        self.groups.len().max(self.parts.len()) <= MAX_GROUPS as usize
    }

    fn note_part(&mut self, group: u16, size: u32) -> bool {
        let index = usize::from(group);
        if self.parts.len() <= index {
            self.parts.resize(index + 1, 0);
        }
        let known = self.parts[index];
        self.parts[index] = gcd(known, size);
        self.parts[index] != known
    }

    /// The greatest common divisor of a group's block and of all its parts that stores have told of.
    #[must_use]
    pub(in crate::fleet) fn grain(&self, group: u16, block_size: u32) -> u32 {
        gcd(
            block_size,
            self.parts.get(usize::from(group)).copied().unwrap_or(0),
        )
    }

    fn show(&mut self, group: u16, shown: SizesSeen) -> bool {
        let index = usize::from(group);
        if self.groups.len() <= index {
            self.groups.resize(index + 1, SizesSeen::Nothing);
        }
        let known = &mut self.groups[index];
        let is_news = *known == SizesSeen::Nothing || shown == SizesSeen::Own;
        if is_news {
            *known = shown;
        }
        is_news && shown == SizesSeen::Smaller
    }

    /// Whether stores contradict the configured size of a group, as far as they have come.
    #[must_use]
    pub(in crate::fleet) fn are_contradicted(&self) -> bool {
        self.groups.contains(&SizesSeen::Smaller)
    }
}
