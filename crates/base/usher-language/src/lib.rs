//! The common part of Usher's policy language. It knows nothing of users, hosts or services: dialects
//! do.
//!
//! A text passes three stages. [`parse_syntax`] turns it into blocks of statements by the tables of a
//! [`Dialect`], refuses characters that a reader cannot see, and goes on after a mistake. [`Fields`]
//! checks the statements of a block by their tables. The dialect checks the rest itself. Mistakes of all
//! stages go to a [`Reporter`], each with its place and its remedy ([`mistakes!`]). [`format`](fn@format)
//! and [`BlockText`] write the canonical form.
//!
//! | to add | write |
//! | --- | --- |
//! | a statement | a [`StatementRule`] in its dialect's table: keyword, how often, values, what it needs |
//! | a kind of value that several statements have | a [`Kind`] |
//! | a mistake | a variant in `mistakes!` with text and remedy, reported where it is found |
//! | a system of its own | a [`Dialect`] of its blocks, which [`Dialect::join`] puts beside the others |
//! | a block whose statements only a program that is loaded knows | nothing: [`Setting`] has them as they are written |
//!
//! No I/O and no clock: the caller reads the files.
//!
//! Room: touches nothing outside its arguments. Dialects of the policy language use it, and the
//! analysis.
#![forbid(unsafe_code)]

mod address;
mod check;
mod cover;
mod dialect;
mod faults;
mod field;
mod fields;
mod format;
mod item;
mod kind;
mod lexer;
mod limits;
mod mistake;
mod name;
mod peers;
mod places;
mod print;
mod report;
mod setting;
mod source;
mod syntax;
mod tree;
mod unique;
mod utf8;

pub use address::{AddressRange, RangeFault, address_from_number, address_number, digits};
pub use check::{Declared, Need, declared};
pub use cover::AddressSet;
pub use dialect::{BlockRule, Dialect, Occurrence, Part, Shape, StatementRule};
pub use faults::{StatementMistake, SyntaxMistake};
pub use field::Field;
pub use fields::Fields;
pub use format::{LINE_WIDTH, format};
pub use item::{Item, Value, is_plain_path, shown_together};
pub use kind::{Checked, Kind};
pub use lexer::is_plain;
pub use limits::{MAXIMUM_ERRORS, MAXIMUM_SOURCE_BYTES, MAXIMUM_STATEMENTS};
pub use mistake::nearest;
pub use mistake::{Diagnostic, Found, Mistake, did_you_mean, shown};
pub use name::{InvalidName, Name, NameRule};
pub use peers::Peers;
pub use places::{Clause, Places};
pub use print::{BlockText, Quoted, Size, Units, joined};
pub use report::Reporter;
pub use setting::{Setting, Written};
pub use source::{Location, Origin, Place, Source, Span};
pub use syntax::parse_syntax;
pub use tree::{Block, Statement, Tree};
pub use unique::Unique;
