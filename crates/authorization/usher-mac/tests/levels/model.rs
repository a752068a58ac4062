//! The rules of docs/mac.md for `biba` and `mls`, written again.

use usher_label::{Level, Levels, Range};

use crate::cases::{Case, Element};
use crate::{EACCES, EINVAL, EPERM};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Module {
    Biba,
    Mls,
}

/// Directions of an access.
#[derive(Debug, Clone, Copy, Default)]
pub struct Ways {
    pub reads: bool,
    pub writes: bool,
}

pub const READS: Ways = Ways {
    reads: true,
    writes: false,
};
pub const WRITES: Ways = Ways {
    reads: false,
    writes: true,
};
pub const BOTH: Ways = Ways {
    reads: true,
    writes: true,
};

/// The level of an object: none where it is not known.
fn level_of(object: &Element, usual: &Level) -> Option<Level> {
    match object {
        Element::Nothing => Some(usual.clone()),
        Element::Unknown => None,
        Element::Of(levels) => levels.effective().cloned(),
    }
}

/// A range that has this level only.
fn only(level: &Level) -> Range {
    Range::new(level.clone(), level.clone()).unwrap()
}

fn within(range: &Range, level: &Level) -> bool {
    range.high().dominates(level) && level.dominates(range.low())
}

/// The levels that a process with this element may take; none if it has no level.
fn range_of(levels: &Levels) -> Option<Range> {
    let effective = levels.effective()?;
    Some(levels.range().cloned().unwrap_or_else(|| only(effective)))
}

fn has_equal(level: &Level, range: &Range) -> bool {
    [level, range.low(), range.high()].contains(&&Level::Equal)
}

impl Module {
    /// The level of files, processes and IPC without an element.
    pub fn usual(self) -> Level {
        match self {
            Self::Biba => Level::High,
            Self::Mls => Level::Low,
        }
    }

    fn flows(self, from: &Level, to: &Level) -> bool {
        match self {
            Self::Biba => from.dominates(to),
            Self::Mls => to.dominates(from),
        }
    }

    pub fn may(self, own: &Element, object: &Element, usual: &Level, ways: Ways) -> i32 {
        let own = match own {
            Element::Nothing => return 0,
            Element::Unknown => return EACCES,
            Element::Of(levels) => match levels.effective() {
                Some(Level::Equal) => return 0,
                Some(level) => level,
                None => return EACCES,
            },
        };
        let Some(level) = level_of(object, usual) else {
            return EACCES;
        };
        let may_read = !ways.reads || self.flows(&level, own);
        let may_write = !ways.writes || self.flows(own, &level);
        if may_read && may_write { 0 } else { EACCES }
    }

    /// 1 where a packet is dropped, as the kernel takes it there.
    pub fn transmits(self, case: &Case) -> i32 {
        if let (Element::Of(own), Element::Of(interface)) = (&case.own, &case.object)
            && let (Some(level), Some(range)) = (own.effective(), interface.range())
        {
            return (!within(range, level)).into();
        }
        let usual = case.usual_of_packet();
        (self.may(&case.own, &case.object, &usual, WRITES) != 0).into()
    }

    pub fn relabels_process(self, former: &Element, wanted: &Element) -> i32 {
        let Element::Of(next) = wanted else {
            return EINVAL;
        };
        let (Some(level), Some(next_range)) = (next.effective(), range_of(next)) else {
            return EINVAL;
        };
        if !within(&next_range, level) {
            return EINVAL;
        }
        let former = match former {
            Element::Nothing => return 0,
            Element::Unknown => return EPERM,
            Element::Of(former) => former,
        };
        let (Some(own), Some(range)) = (former.effective(), range_of(former)) else {
            return EPERM;
        };
        if *own == Level::Equal {
            return 0;
        }
        if has_equal(level, &next_range) && !has_equal(own, &range) {
            return EPERM;
        }
        let inside = [level, next_range.low(), next_range.high()];
        let is_narrower = inside.into_iter().all(|level| within(&range, level));
        if is_narrower { 0 } else { EPERM }
    }

    pub fn relabels_file(self, own: &Element, former: &Element, wanted: &Element) -> i32 {
        let next = match wanted {
            Element::Nothing => self.usual(),
            Element::Of(Levels::Effective(level)) => level.clone(),
            _ => return EINVAL,
        };
        let own = match own {
            Element::Nothing => return 0,
            Element::Unknown => return EPERM,
            Element::Of(own) => own,
        };
        let (Some(level), Some(range)) = (own.effective(), range_of(own)) else {
            return EPERM;
        };
        if *level == Level::Equal {
            return 0;
        }
        let Some(former) = level_of(former, &self.usual()) else {
            return EPERM;
        };
        if next == Level::Equal && !has_equal(level, &range) {
            return EPERM;
        }
        if within(&range, &former) && within(&range, &next) {
            0
        } else {
            EPERM
        }
    }

    /// The element of a new file.
    pub fn of_new_file(self, own: &Element) -> Element {
        let level = match own {
            Element::Of(levels) => levels.effective(),
            _ => None,
        };
        let level = level.filter(|level| **level != Level::Equal).cloned();
        Element::Of(Levels::Effective(level.unwrap_or_else(|| self.usual())))
    }
}
