//! What is decided after a load failed, as far as it is large or hot. The functions are pure: they
//! know neither the cache that asks nor a clock.
//!
//! `resume_point` applies the rule to the tables of one request: presence is what its tables hold,
//! less what is bad.

mod resume_point;

pub use resume_point::{OwnTable, OwnTables, Refusal, ResumePoint, Search, State, Why};
