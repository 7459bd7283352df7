//! The channels of one rank: what separates one count of copies from another.

use hashbrown::HashMap;
use serde::{Deserialize, Serialize};

use crate::fleet::presence::planes::{PlaneId, PlaneKey, Planes};
use crate::fleet::tier::Tier;

/// Index of a channel.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub(crate) struct ChannelId(pub u16);

/// What separates one count of copies from another.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub(crate) struct ChannelKey {
    /// Group index on the wire.
    pub group: u16,
    /// Whether the copy is smaller than the group's block.
    pub partial: bool,
    /// The tier that the copy is on.
    pub tier: Tier,
    /// Whether the producer called the copy remote.
    pub remote: bool,
    /// The number of the owner's name; 0 means no owner.
    pub owner: u64,
    /// Whether the copy has not been confirmed since a clear.
    pub doubted: bool,
}

/// A channel, and the plane that has its bits.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Channel {
    /// What identifies the channel.
    pub key: ChannelKey,
    /// The plane that has its presence bits.
    pub plane: PlaneId,
    /// Whether it counts, or once counted, copies of whose size nothing was told.
    pub has_placeholders: bool,
}

/// The number of channels of one rank that events may make: groups times tiers times owners, with
/// some margin. Each can also have a doubted twin and, if its group's block turns out larger, an
/// interior one.
const MAX_CHANNELS: usize = 4096;
/// Up to this many channels are searched one by one; most ranks never have more.
const FEW: usize = 8;

/// All channels of one rank.
#[derive(Debug, Default)]
pub(crate) struct Channels {
    pub(super) all: Vec<Channel>,
    by_key: HashMap<ChannelKey, ChannelId>,
    /// The planes that the channels use, each listed once.
    planes: Vec<PlaneId>,
    num_doubted: usize,
    has_interior_on_gpu: bool,
}

impl Channels {
    /// The channel of a key, if it exists.
    #[must_use]
    pub(crate) fn find(&self, key: ChannelKey) -> Option<ChannelId> {
        if self.all.len() <= FEW {
            return self.iter().find(|(_, c)| c.key == key).map(|(id, _)| id);
        }
        self.by_key.get(&key).copied()
    }

    /// Notes that a channel counts a copy of whose size nothing was told. Returns true if it is the
    /// channel's first.
    pub(crate) fn note_placeholder(&mut self, channel: ChannelId) -> bool {
        !std::mem::replace(&mut self.all[channel.0 as usize].has_placeholders, true)
    }

    /// The groups of which some copy may be a placeholder; one may come several times.
    pub(crate) fn groups_of_placeholders(&self) -> Vec<u16> {
        let found = self.all.iter().filter(|channel| channel.has_placeholders);
        found.map(|channel| channel.key.group).collect()
    }

    /// The channels that have placeholders.
    pub(crate) fn of_placeholders(&self) -> Vec<ChannelId> {
        let found = self.iter().filter(|(_, channel)| channel.has_placeholders);
        found.map(|(id, _)| id).collect()
    }

    /// Whether some of a key's copies, certain or in doubt, may be placeholders.
    #[must_use]
    pub(crate) fn has_placeholders(&self, key: ChannelKey) -> bool {
        let certain = self.find(ChannelKey {
            doubted: false,
            ..key
        });
        certain.is_some_and(|channel| self.get(channel).has_placeholders)
    }

    /// Whether there are as many channels as events may make.
    #[must_use]
    pub(crate) fn is_full(&self) -> bool {
        self.all.len() >= MAX_CHANNELS
    }

    /// Adds a channel that does not exist yet, for a rank with this word in the planes.
    pub(crate) fn add(&mut self, key: ChannelKey, planes: &mut Planes, word: u16) -> ChannelId {
        let id = u16::try_from(self.all.len()).expect("few channels, and twins of them");
        let id = ChannelId(id);
        let plane = planes.find_or_create(PlaneKey {
            group: key.group,
            partial: key.partial,
            tier: key.tier,
            doubted: key.doubted,
            word,
        });
        self.all.push(Channel {
            key,
            plane,
            has_placeholders: false,
        });
        self.by_key.insert(key, id);
        self.num_doubted += usize::from(key.doubted);
        self.has_interior_on_gpu |= key.partial && key.tier == Tier::Gpu;
        if !self.planes.contains(&plane) {
            self.planes.push(plane);
        }
        id
    }

    /// Whether some channel counts copies that are in doubt.
    #[must_use]
    pub(crate) fn has_doubts(&self) -> bool {
        self.num_doubted > 0
    }

    /// Whether a channel counts copies on the GPU that are certain.
    #[must_use]
    pub(crate) fn is_on_gpu(&self, channel: ChannelId) -> bool {
        let key = self.get(channel).key;
        key.tier == Tier::Gpu && !key.doubted
    }

    /// Whether some channel counts entries inside blocks on the GPU.
    #[must_use]
    pub(crate) fn has_interior_on_gpu(&self) -> bool {
        self.has_interior_on_gpu
    }

    /// The planes in which the rank may have bits.
    #[must_use]
    pub(crate) fn planes(&self) -> &[PlaneId] {
        &self.planes
    }

    /// A channel by index.
    #[must_use]
    pub(crate) fn get(&self, channel: ChannelId) -> Channel {
        self.all[channel.0 as usize]
    }

    /// All channels with their indices.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (ChannelId, Channel)> + Clone + '_ {
        (0u16..).map(ChannelId).zip(self.all.iter().copied())
    }

    /// The number of channels.
    #[must_use]
    pub(crate) fn len(&self) -> usize {
        self.all.len()
    }

    /// Bytes held, by capacity.
    #[must_use]
    pub(crate) fn bytes(&self) -> usize {
        self.all.capacity() * size_of::<Channel>() + self.by_key.allocation_size()
    }

    /// Panics unless every channel is found by its key.
    pub(crate) fn check_integrity(&self) {
        for (id, channel) in self.iter() {
            assert_eq!(self.find(channel.key), Some(id), "a channel by its key");
        }
    }
}
