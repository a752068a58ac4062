//! Collects the mistakes of all stages.

use crate::error::{PolicyError, PolicyErrorKind};
use crate::source::{Location, Origin, Place, PlaceFinder, Source, Span, place_of};

/// Most errors reported at once. After a hundred mistakes the text is not a policy; reporting
/// without bound would let a text of a megabyte make an answer of many.
pub const MAXIMUM_ERRORS: usize = 100;

pub(crate) struct Reporter<'a> {
    sources: &'a [Source],
    found: Vec<(Location, PolicyErrorKind)>,
    first_unreported: Option<Location>,
    /// There are sources besides these.
    of_part: bool,
    places: PlaceFinder,
}

impl<'a> Reporter<'a> {
    pub(crate) fn new(sources: &'a [Source]) -> Self {
        Self {
            sources,
            found: Vec::new(),
            first_unreported: None,
            of_part: false,
            places: PlaceFinder::default(),
        }
    }

    /// Of sources that are not all of the policy: a name that they do not define is no mistake.
    pub(crate) fn of_part(sources: &'a [Source]) -> Self {
        Self {
            of_part: true,
            ..Self::new(sources)
        }
    }

    /// Notes a mistake.
    pub(crate) fn report(&mut self, location: Location, kind: PolicyErrorKind) {
        if !(self.of_part && kind.is_of_unknown_name()) {
            self.report_against(location, || kind);
        }
    }

    /// Notes a mistake that contradicts an earlier text at `first`.
    pub(crate) fn report_repeated(
        &mut self,
        location: Location,
        first: Location,
        kind: impl FnOnce(Place) -> PolicyErrorKind,
    ) {
        let sources = self.sources;
        self.report_against(location, || kind(place_of(sources, first)));
    }

    /// Where a statement stands that goes from its keyword to its last token.
    pub(crate) fn origin(&mut self, first: Location, last: Location) -> Origin {
        let span = Span {
            offset: first.span.offset,
            length: last.span.end().saturating_sub(first.span.offset),
        };
        Origin {
            place: self.places.place(self.sources, first),
            span,
        }
    }

    /// True when nothing more will be kept and the stages may stop.
    pub(crate) fn is_full(&self) -> bool {
        self.first_unreported.is_some()
    }

    /// The errors in the order of the text.
    pub(crate) fn finish(mut self) -> Vec<PolicyError> {
        // Stable: two mistakes at one place stay in the order in which they were found.
        self.found.sort_by_key(|(location, _)| *location);
        if let Some(location) = self.first_unreported {
            self.found.push((location, PolicyErrorKind::TooManyErrors));
        }
        let sources = self.sources;
        self.found
            .into_iter()
            .map(|(location, kind)| {
                let place = place_of(sources, location);
                PolicyError {
                    file: place.file,
                    line: place.line,
                    column: place.column,
                    span: location.span,
                    kind,
                }
            })
            .collect()
    }

    fn report_against(&mut self, location: Location, kind: impl FnOnce() -> PolicyErrorKind) {
        if self.found.len() < MAXIMUM_ERRORS {
            self.found.push((location, kind()));
        } else {
            self.first_unreported.get_or_insert(location);
        }
    }
}
