//! The block `application` and its statements, as a dialect of the language.

use usher_language::Occurrence::AtLeastOnce;
use usher_language::{BlockRule, Dialect, Shape, StatementRule};

/// Opens a block about the traffic of programs.
pub const APPLICATION: &str = "application";

/// Opens a block inside: how traffic is protected.
pub const PROTECTION: &str = "protection";

/// The host's means to protect traffic, as declarations name it.
pub const IPSEC: &str = "IPsec";

/// Begins the items of a protection; the port is part of the word.
pub(crate) const LOCAL_PORT: &str = "localport=";

/// Begins the second word of an item.
pub(crate) const REMOTE_PORT: &str = "remoteport=";

/// Other words of an item, and `localport = PORT`.
const ITEM_SLIPS: &[&str] = &[
    "localport",
    "remoteport",
    "encryption",
    "authentication",
    "optional",
    "mandatory",
];

/// The blocks and statements of this system.
pub fn dialect() -> Dialect {
    const NETWORK: &str = "`network ADDRESSES trusted;`, or `untrusted`, or `protected NAME`";
    const ITEM: &str = "`localport=PORT remoteport=PORT encryption mandatory;` in this order and \
                        without blanks around `=`, with `any` for all ports, or `authentication`, or `optional`, or `strong` or `ah` at the end";
    let statements = |keyword: &str, form: &str, about: &str| {
        let shape = Shape::Own(form.to_owned());
        StatementRule::new(keyword, AtLeastOnce, shape, about)
    };
    let items = statements(
        LOCAL_PORT,
        ITEM,
        "how traffic between two ports is protected",
    );
    let networks = statements(
        "network",
        NETWORK,
        "how traffic with these peers is treated",
    );
    let protection = BlockRule {
        keyword: PROTECTION.to_owned(),
        statements: vec![items.slips(ITEM_SLIPS)],
        ..BlockRule::default()
    };
    let application = BlockRule {
        keyword: APPLICATION.to_owned(),
        statements: vec![networks],
        has_names: true,
        needs: Some(IPSEC),
        inner: vec![protection],
        ..BlockRule::default()
    };
    Dialect {
        blocks: vec![application],
        statements: Vec::new(),
    }
}
