//! The parts of a cached block that SGLang's tree keeps and evicts one by one.

use crate::names::names;

/// A part of a block. No released engine publishes anything but the first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Component {
    /// The KV of full attention.
    Full,
    /// The KV of sliding windows.
    Window,
    /// The state at the block's end.
    State,
}

names! { Component:
    Full = "full",
    Window = "swa",
    State = "mamba",
}

/// A set of components.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Components(u8);

impl Components {
    /// Adds a component.
    pub fn insert(&mut self, component: Component) {
        self.0 |= 1 << component as u8;
    }

    /// Whether a component is in the set.
    #[must_use]
    pub fn has(self, component: Component) -> bool {
        self.0 & 1 << component as u8 != 0
    }

    /// Those in the set, in the order of the enum.
    pub fn iter(self) -> impl Iterator<Item = Component> {
        let all = Component::NAMES.iter().map(|(_, component)| *component);
        all.filter(move |component| self.has(*component))
    }
}
