//! The statements of the module `ifoff`: network interfaces that are silent, as FreeBSD's mac_ifoff(4) has it.
//!
//! ```text
//! loopback on;
//! interface "eth0" on;
//! others off;
//! capture off;
//! ```

use std::collections::BTreeMap;

use usher_language::{
    Field, Fields, Found, Kind, Occurrence, Part, Quoted, Reporter, Shape, StatementRule, Unique,
};

use crate::framework::is_interface_name;
use crate::limits::MAXIMUM_SWITCHES;
use crate::mistake::MacMistake;
use crate::words::choice;

/// The module's name.
pub const MODULE: &str = "ifoff";

const LOOPBACK: &str = "loopback";
const INTERFACE: &str = "interface";
const OTHERS: &str = "others";
const CAPTURE: &str = "capture";

const ON: &str = "on";

/// The name of the interface that `loopback` is about.
const LOOPBACK_INTERFACE: &str = "lo";

/// The settings of the module. Default: FreeBSD's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IfOff {
    /// `lo` is on.
    pub loopback: bool,
    /// Interfaces by name: on, or silent.
    pub interfaces: BTreeMap<String, bool>,
    /// All other interfaces are on.
    pub others: bool,
    /// Packet sockets receive by silent interfaces, too.
    pub capture: bool,
}

impl Default for IfOff {
    fn default() -> Self {
        Self {
            loopback: true,
            interfaces: BTreeMap::new(),
            others: false,
            capture: false,
        }
    }
}

fn on_or_off() -> Kind {
    choice(&[ON, "off"])
}

/// The statements of its block.
pub(crate) fn statements() -> Vec<StatementRule> {
    let interface = vec![
        Part::Value(Kind::Text("\"NAME\"".to_owned())),
        Part::Value(on_or_off()),
    ];
    let switch = |keyword: &str, about: &str| {
        let shape = Shape::One(on_or_off());
        StatementRule::new(keyword, Occurrence::AtMostOnce, shape, about)
    };
    vec![
        switch(LOOPBACK, "the interface `lo`, of every network namespace"),
        StatementRule::new(
            INTERFACE,
            Occurrence::Any,
            Shape::Phrase(interface),
            "a network interface of this host by name",
        ),
        switch(OTHERS, "the interfaces that no other statement is about"),
        switch(CAPTURE, "packet sockets receive by silent interfaces, too"),
    ]
}

/// The settings of a block; what has mistakes is left out.
pub(crate) fn settings(fields: &Fields<'_>, reporter: &Reporter<'_>) -> IfOff {
    if let Some(field) = fields.all(INTERFACE).nth(MAXIMUM_SWITCHES) {
        reporter.report(field.statement.location, MacMistake::TooManySwitches);
    }
    let is_on = |keyword| fields.word(keyword).map(|word| word == ON);
    let mut listed = Unique::default();
    let switches = fields.all(INTERFACE).take(MAXIMUM_SWITCHES);
    let switches = switches.filter_map(|field| switch(field, &mut listed, reporter));
    let default = IfOff::default();
    IfOff {
        loopback: is_on(LOOPBACK).unwrap_or(default.loopback),
        interfaces: switches.collect(),
        others: is_on(OTHERS).unwrap_or(default.others),
        capture: is_on(CAPTURE).unwrap_or(default.capture),
    }
}

fn switch(
    field: &Field<'_>,
    listed: &mut Unique<String>,
    reporter: &Reporter<'_>,
) -> Option<(String, bool)> {
    let [Some(named), Some(state)] = field.parts()? else {
        return None;
    };
    let name = named.text()?;
    if name == LOOPBACK_INTERFACE {
        return field.refuse(named, MacMistake::LoopbackByName);
    }
    if !is_interface_name(name) {
        let found = Found(named.shown());
        return field.refuse(named, MacMistake::InvalidInterface { found });
    }
    listed.list(name.to_owned(), named, reporter)?;
    Some((name.to_owned(), state.is_word(ON)))
}

impl IfOff {
    /// The statements in their canonical form, without `;`.
    pub(crate) fn lines(&self) -> Vec<String> {
        let word = |is_on| if is_on { ON } else { "off" };
        let default = Self::default();
        let mut lines = Vec::new();
        if self.loopback != default.loopback {
            lines.push(format!("{LOOPBACK} {}", word(self.loopback)));
        }
        let named = self.interfaces.iter();
        lines.extend(
            named.map(|(name, is_on)| format!("{INTERFACE} {} {}", Quoted(name), word(*is_on))),
        );
        if self.others != default.others {
            lines.push(format!("{OTHERS} {}", word(self.others)));
        }
        if self.capture != default.capture {
            lines.push(format!("{CAPTURE} {}", word(self.capture)));
        }
        lines
    }

    /// Whether the host can reach no other host.
    pub fn cuts_off(&self) -> bool {
        !self.others && self.interfaces.values().all(|is_on| !is_on)
    }

    /// The interfaces whose statement says the same as `others`.
    pub fn needless(&self) -> impl Iterator<Item = &str> {
        let named = self.interfaces.iter();
        let needless = named.filter(|(_, is_on)| **is_on == self.others);
        needless.map(|(name, _)| name.as_str())
    }
}
