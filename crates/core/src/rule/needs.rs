//! What a boundary needs of a group: the only definition of the rule's table.
//!
//! All code that asks which blocks a resume reads asks here: to explain and to score answers, to
//! keep and to free blocks. Only the sweep has its own form of the table, for words of 64 holders,
//! and tests show that the two are equal.

use std::ops::Range;

use crate::error::{Error, Result};
use crate::spec::{GroupSpec, SpecKind};

/// The first token of this group that a token at `boundary` reads; `boundary` itself if it reads
/// none.
///
/// A state counts as the last token that it includes.
#[must_use]
pub fn first_read(group: &GroupSpec, boundary: u32) -> u32 {
    match group.kind {
        SpecKind::FullAttention
        | SpecKind::MlaAttention
        | SpecKind::SinkFullAttention
        | SpecKind::Unknown => 0,
        SpecKind::SlidingWindow | SpecKind::SlidingWindowMla => {
            boundary.saturating_sub(group.window.unwrap_or(1).saturating_sub(1))
        }
        SpecKind::ChunkedLocalAttention => group.chunk.map_or(0, |chunk| boundary / chunk * chunk),
        SpecKind::Mamba => boundary.saturating_sub(1),
        SpecKind::EncoderOnlyAttention | SpecKind::CrossAttention => boundary,
    }
}

/// The blocks of a group that must be held for a resume at `boundary`, in tokens.
///
/// ```text
/// block of 4      | 0 | 1 | 2 | 3 |
/// boundary 12                 L         full 0..3, EAGLE full 0..4, window of 6 tokens 1..3,
///                                       chunk of 8 tokens 2..3, state 2..3
/// ```
/// A group that never restricts a prefix needs nothing, and neither does a chunk group at a
/// boundary where a chunk starts. A group of unknown kind or chunk needs every block. The group of
/// a draft head also needs the unit that begins at the boundary. If the boundary (or that unit)
/// ends inside a block, an entry of the block at that point is enough.
///
/// ```
/// use kvbraid_core::rule::needed;
/// use kvbraid_core::spec::{GroupSpec, SpecKind};
///
/// let full = GroupSpec::new(SpecKind::FullAttention, 16);
/// let window = GroupSpec { kind: SpecKind::SlidingWindow, window: Some(32), ..full };
/// assert_eq!(needed(&full, 64), 0..4);
/// assert_eq!(needed(&window, 64), 2..4);
/// assert_eq!(needed(&GroupSpec { eagle: true, ..window }, 64), 2..5);
/// assert_eq!(needed(&GroupSpec { kind: SpecKind::Mamba, ..full }, 64), 3..4);
/// ```
#[must_use]
pub fn needed(group: &GroupSpec, boundary: u32) -> Range<u32> {
    let size = group.block_size;
    let never = !group.prefix_cacheable || group.kind.is_never_reused();
    // A state cannot be rewound, so it has no unit to drop.
    let drops = group.eagle && group.kind != SpecKind::Mamba;
    let start = first_read(group, boundary);
    let end = boundary.saturating_add(u32::from(drops));
    if boundary == 0 || never || start == end {
        let nothing = boundary.div_ceil(size);
        return nothing..nothing;
    }
    start / size..end.div_ceil(size)
}

/// Refuses a boundary at which a group of this kind is never resumed.
///
/// # Errors
/// `InvalidValue` that names the boundary, the block and the kind.
pub fn check_boundary(group: &GroupSpec, boundary: u32) -> Result<()> {
    let has_interior = !group.kind.is_window() && group.kind != SpecKind::ChunkedLocalAttention;
    if has_interior || boundary.is_multiple_of(group.block_size) {
        return Ok(());
    }
    Err(Error::InvalidValue(format!(
        "boundary {boundary}: it lies inside a block of {} tokens, and a {} group is resumed where a \
         block ends; take a multiple of the block size",
        group.block_size,
        group.kind.name()
    )))
}
