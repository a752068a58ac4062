//! The refusals that the module has noted.

use std::collections::BTreeMap;

use usher_bpf::zerocopy::{FromZeros, IntoBytes};
use usher_mac_blocks::te::Class;

use super::permissions::words;
use crate::shared::MacTe;

/// Permissions that a domain lacks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Denial {
    /// The domain.
    pub domain: String,
    /// The type or domain of the objects.
    pub object: String,
    /// Their class.
    pub class: Class,
    /// The permissions, by their words.
    pub permissions: Vec<&'static str>,
}

/// The refusals of the module since its settings came into force, and those that it would have made without
/// `permissive`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Denials {
    /// In order; each domain, object and class once.
    pub denials: Vec<Denial>,
    /// How many are about names that the settings do not declare.
    pub undeclared: usize,
    /// How often there was no room to note another one.
    pub lost: u64,
}

/// The denials in the module's settings, as it has left them.
pub(crate) fn denials(settings: &MacTe) -> Denials {
    let name = |number: u64| -> Option<String> {
        let place = usize::try_from(number & 0xffff).ok()?;
        let text = &settings.names.get(place)?.text;
        let end = text.iter().position(|byte| *byte == 0)?;
        let text = std::str::from_utf8(&text[..end]).ok()?;
        (!text.is_empty()).then(|| text.to_owned())
    };
    let mut noted = BTreeMap::new();
    let mut undeclared = 0;
    for denial in settings.denials.iter().filter(|denial| denial.about != 0) {
        let class = Class::ALL.get((denial.about >> 32 & 0xffff) as usize);
        let names = (name(denial.about >> 16), name(denial.about));
        let (Some(class), (Some(domain), Some(object))) = (class, names) else {
            undeclared += 1;
            continue;
        };
        let permissions = words(*class, denial.permissions);
        // Empty: the module has taken the place, and not noted the permissions yet.
        if !permissions.is_empty() {
            noted.insert((domain, object, *class), permissions);
        }
    }
    let denials = noted.into_iter();
    let denials = denials.map(|((domain, object, class), permissions)| Denial {
        domain,
        object,
        class,
        permissions,
    });
    Denials {
        denials: denials.collect(),
        undeclared,
        lost: settings.denials_lost,
    }
}

impl Denials {
    /// The denials in the bytes of settings ([`Settings::encode`](crate::Settings::encode)), as the module has left
    /// them; none for other bytes.
    #[must_use]
    pub fn of_bytes(bytes: &[u8]) -> Option<Self> {
        let mut settings = MacTe::new_box_zeroed().ok()?;
        let room = settings.as_mut_bytes();
        if room.len() != bytes.len() {
            return None;
        }
        room.copy_from_slice(bytes);
        Some(denials(&settings))
    }
}
