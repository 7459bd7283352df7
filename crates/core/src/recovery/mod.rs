//! What is decided after a load failed, as far as it is large or hot. The functions are pure: they
//! know neither the cache that asks nor a clock.
//!
//! `resume_point` applies the rule to the tables of one request: presence is what its tables hold,
//! less what is bad. `run` has the input of an assessment. [`assess`] puts the runs side by side
//! (`held`), with what blocks held before (`former`), finds what was reported in their tables
//! (`hits`), sees which parts of a report count (`reported`), follows garbage from run to run
//! (`taint`), and says where each run resumes and who writes shared blocks again (`owners`).
//! [`Snapshot`] has the tables when there is no live cache.

mod assess;
mod former;
mod held;
mod hits;
mod owners;
mod reported;
mod resume_point;
mod run;
mod snapshot;
mod taint;

pub use assess::{Assessment, AssessmentInput, assess};
pub use owners::Verdict;
pub use reported::{Ignored, IgnoredCounts};
pub use resume_point::{OwnTable, OwnTables, Refusal, ResumePoint, Search, State, Why};
pub use run::{FailedPlace, Failures, Gap, GivenBack, Run, Tables};
pub use snapshot::{RunTables, Snapshot};

#[cfg(test)]
mod tests;
