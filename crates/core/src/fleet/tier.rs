//! Where a copy lives, nearest first.

/// The tiers in order of distance from the accelerator.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Tier {
    /// On the accelerator.
    Gpu,
    /// In the host's memory.
    Cpu,
    /// On disk, on another host, or behind a connector.
    Storage,
}

impl Tier {
    /// All tiers, nearest first.
    pub const ALL: [Self; 3] = [Self::Gpu, Self::Cpu, Self::Storage];

    /// The name in answers.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Gpu => "gpu",
            Self::Cpu => "cpu",
            Self::Storage => "storage",
        }
    }
}
