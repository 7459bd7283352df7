//! x
pub mod answer;
mod apply;
pub mod catalog;
pub mod engine_chain;
pub mod limbo;
pub mod model;
pub mod naming;
pub mod nodes;
pub mod planes;
pub mod query;
pub mod rank;
pub mod slots;
pub mod texts;
pub mod tier;
pub mod walk;
mod weight;
