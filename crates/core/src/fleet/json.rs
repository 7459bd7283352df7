//! The body of a score answer, as the HTTP API gives it.

use serde::ser::{Serialize, SerializeMap, Serializer};

use super::answer::Row;
use super::answer::{Answer, Bounds};
use super::pod::Member;
use super::tier::TierSet;

#[derive(serde::Serialize)]
struct Body<'a> {
    model: &'a str,
    num_tokens: usize,
    pods: Vec<Entry<'a>>,
}

#[derive(serde::Serialize)]
struct Entry<'a> {
    pod: &'a str,
    dp_rank: u32,
    state: &'static str,
    lower: u32,
    upper: u32,
    exactness: &'static str,
    present: u32,
    tiers: Tiers<'a>,
    limiting: Option<Limiting>,
    score: f64,
}

#[derive(serde::Serialize)]
struct Limiting {
    group: Option<u16>,
    boundary: u32,
}

#[derive(serde::Serialize)]
struct Range {
    lower: u32,
    upper: u32,
}

struct Tiers<'a>(&'a [(TierSet, Bounds)]);

impl Serialize for Tiers<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(self.0.len()))?;
        for (set, bounds) in self.0 {
            let range = Range {
                lower: bounds.lower,
                upper: bounds.upper,
            };
            map.serialize_entry(&set.name(), &range)?;
        }
        map.end()
    }
}

fn entry<'a>((member, answer): (&'a Member, &'a Row)) -> Entry<'a> {
    Entry {
        pod: &member.pod,
        dp_rank: member.dp_rank,
        state: answer.state.name(),
        lower: answer.bounds.lower,
        upper: answer.bounds.upper,
        exactness: answer.exactness(),
        present: answer.present,
        tiers: Tiers(&answer.tiers),
        limiting: answer.limiting.map(|(group, boundary)| Limiting {
            group: super::rank::Rank::group_name(group),
            boundary,
        }),
        score: answer.score,
    }
}

impl Answer {
    /// The answer as the bytes of a JSON object.
    #[must_use]
    pub fn to_json(&self, model: &str, num_tokens: usize) -> Vec<u8> {
        let pods = self.roster.iter().zip(&self.rows).map(entry).collect();
        // Nothing in it can fail to serialise: texts, numbers and maps with text keys.
        serde_json::to_vec(&Body {
            model,
            num_tokens,
            pods,
        })
        .unwrap_or_default()
    }
}
