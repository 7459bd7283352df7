//! Prepared steps by block size, kept from store to store.
//!
//! Preparing a step costs as much as hashing one of its blocks, so it is cheap to forget all of
//! them. However many block sizes engines invent, what is kept stays below a bound. Large blocks,
//! which no engine stores by the thousand, are prepared when they are needed and not kept.

use hashbrown::HashMap;

use crate::prefix::{KeyField, Unit};

/// The number of tokens of all prepared blocks together: a megabyte.
const MOST_TOKENS: usize = 1 << 17;

/// Prepared steps by block size.
#[derive(Debug)]
pub(in crate::fleet) struct Units {
    field: KeyField,
    by_size: HashMap<u32, Unit>,
    num_tokens: usize,
}

impl Units {
    /// No step is prepared yet.
    #[must_use]
    pub(in crate::fleet) fn new(field: KeyField) -> Self {
        Self {
            field,
            by_size: HashMap::new(),
            num_tokens: 0,
        }
    }

    /// Works with the steps of one block size. The caller must have a block of that many tokens.
    ///
    /// The steps are lent and not shared: counting owners would be an atomic operation, which waits
    /// until everything written before it has reached memory.
    pub(in crate::fleet) fn with<T>(&mut self, tokens: u32, work: impl FnOnce(&Unit) -> T) -> T {
        if let Some(unit) = self.by_size.get(&tokens) {
            return work(unit);
        }
        let unit = Unit::new(self.field, tokens);
        let result = work(&unit);
        self.keep(unit);
        result
    }

    fn keep(&mut self, unit: Unit) {
        let size = unit.tokens as usize;
        if size > MOST_TOKENS {
            return;
        }
        if self.num_tokens + size > MOST_TOKENS {
            self.by_size.clear();
            self.num_tokens = 0;
        }
        self.num_tokens += size;
        self.by_size.insert(unit.tokens, unit);
    }

    /// Bytes held.
    #[must_use]
    pub(in crate::fleet) fn bytes(&self) -> usize {
        self.num_tokens * size_of::<u64>() + self.by_size.allocation_size()
    }
}

#[cfg(test)]
mod tests {
    use super::Units;
    use crate::prefix::KeyField;

    #[test]
    fn what_is_kept_is_bounded_however_many_sizes_there_are() {
        let mut units = Units::new(KeyField::new(5));
        let mut most = 0;
        for tokens in (1..3000).chain([1 << 17, 1 << 18, 1]) {
            assert_eq!(units.with(tokens, |unit| unit.tokens), tokens);
            most = most.max(units.bytes());
        }
        assert!(most < 2 << 20, "{most} bytes");
        assert!(most > 1 << 20, "what is kept is accounted");
    }
}
