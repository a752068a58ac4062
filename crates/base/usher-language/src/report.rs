//! Collects the mistakes of all stages.

use std::cell::{Cell, RefCell};
use std::sync::Arc;

use crate::faults::SyntaxMistake;
use crate::limits::MAXIMUM_ERRORS;
use crate::mistake::{Diagnostic, Mistake};
use crate::source::{Location, Origin, Place, PlaceFinder, Source, Span, place_of};

/// The mistakes found so far in some sources.
#[derive(Debug)]
pub struct Reporter<'s> {
    sources: &'s [Source],
    found: RefCell<Vec<(Location, Arc<dyn Mistake>)>>,
    first_unreported: Cell<Option<Location>>,
    /// There are sources besides these.
    of_part: bool,
    places: RefCell<PlaceFinder>,
}

impl<'s> Reporter<'s> {
    /// For all sources of a policy.
    pub fn new(sources: &'s [Source]) -> Self {
        Self {
            sources,
            found: RefCell::default(),
            first_unreported: Cell::default(),
            of_part: false,
            places: RefCell::default(),
        }
    }

    /// For sources that are not all of the policy: a name that they do not define is no mistake.
    pub fn of_part(sources: &'s [Source]) -> Self {
        Self {
            of_part: true,
            ..Self::new(sources)
        }
    }

    /// Notes a mistake.
    pub fn report(&self, location: Location, mistake: impl Mistake) {
        let mut found = self.found.borrow_mut();
        if found.len() < MAXIMUM_ERRORS {
            found.push((location, Arc::new(mistake)));
        } else if self.first_unreported.get().is_none() {
            self.first_unreported.set(Some(location));
        }
    }

    /// Notes a mistake, and returns none for the value that has it.
    pub fn refuse<T>(&self, location: Location, mistake: impl Mistake) -> Option<T> {
        self.report(location, mistake);
        None
    }

    /// Notes that a name is not defined, unless another source may define it.
    pub fn refuse_unknown<T>(&self, location: Location, mistake: impl Mistake) -> Option<T> {
        if !self.of_part {
            self.report(location, mistake);
        }
        None
    }

    /// The place of an earlier text that a mistake contradicts. An empty place when no more mistakes are
    /// kept: finding a place takes a walk over the text.
    pub fn place(&self, location: Location) -> Place {
        if self.found.borrow().len() < MAXIMUM_ERRORS {
            place_of(self.sources, location)
        } else {
            Place::default()
        }
    }

    /// The place of a statement that extends from its keyword to its last token.
    pub fn origin(&self, first: Location, last: Location) -> Origin {
        let span = Span {
            offset: first.span.offset,
            length: last.span.end().saturating_sub(first.span.offset),
        };
        Origin {
            place: self.places.borrow_mut().place(self.sources, first),
            span,
        }
    }

    /// True when nothing more will be kept and the stages may stop.
    pub fn is_full(&self) -> bool {
        self.first_unreported.get().is_some()
    }

    /// The mistakes in the order of the text.
    pub fn finish(self) -> Vec<Diagnostic> {
        let mut found = self.found.into_inner();
        // Stable: two mistakes at one place stay in the order in which they were found.
        found.sort_by_key(|(location, _)| *location);
        if let Some(location) = self.first_unreported.get() {
            found.push((location, Arc::new(SyntaxMistake::TooManyErrors)));
        }
        let found = found.into_iter();
        found
            .map(|(location, kind)| Diagnostic::of(self.sources, location, kind))
            .collect()
    }
}
