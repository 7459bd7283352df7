//! Tables without an order are written in order, so that equal contents have equal bytes.

use std::collections::{BTreeMap, BTreeSet};
use std::hash::BuildHasher;

use hashbrown::{HashMap, HashSet};
use serde::{Serialize, Serializer};

/// A map, by its keys.
pub(in crate::fleet) fn map<K, V, S, Out>(
    map: &HashMap<K, V, S>,
    out: Out,
) -> Result<Out::Ok, Out::Error>
where
    K: Ord + Serialize,
    V: Serialize,
    S: BuildHasher,
    Out: Serializer,
{
    map.iter().collect::<BTreeMap<_, _>>().serialize(out)
}

/// A set.
pub(in crate::fleet) fn set<K, S, Out>(set: &HashSet<K, S>, out: Out) -> Result<Out::Ok, Out::Error>
where
    K: Ord + Serialize,
    S: BuildHasher,
    Out: Serializer,
{
    set.iter().collect::<BTreeSet<_>>().serialize(out)
}
