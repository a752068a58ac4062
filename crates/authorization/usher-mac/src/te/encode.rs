//! The settings as the module reads them.

use std::collections::BTreeMap;

use usher_bpf::zerocopy::FromZeros;
use usher_mac_blocks::te::{
    Class, Permissive, TERMINAL, TypeEnforcement, TypeName, UNCONFINED, UNTYPED,
};

use super::TypeMistake;
use super::permissions::bits;
use crate::shared::{
    MAC_TE_CLASSES, MAC_TE_NAME, MAC_TE_NAMES, MAC_TE_PAIRS, MAC_TE_PLACES, MAC_TE_RELABELS, MacTe,
    MacTeRelabel,
};
use usher_mac_blocks::{MAXIMUM_NAMES, MAXIMUM_RELABELS, MAXIMUM_TYPE_RULES};

// Beside declared names there are the three that always exist, and number 0.
const _: () = assert!(MAXIMUM_NAMES + 4 == MAC_TE_NAMES as usize);
const _: () = assert!(MAXIMUM_TYPE_RULES + 1 == MAC_TE_PAIRS as usize);
const _: () = assert!(MAXIMUM_RELABELS == MAC_TE_RELABELS as usize);
const _: () = assert!(MAC_TE_PLACES == 4096 && MAC_TE_CLASSES == 8);

/// Limit of seeds that are tried. One of about 3,000 is good for 260 names.
const SEEDS: u64 = 1 << 20;
/// The multiplier of the module's hash.
const MULTIPLIER: u64 = 0x9e37_79b9_7f4a_7c15;

/// Settings as the module reads them.
pub(crate) fn encode(settings: &TypeEnforcement) -> Result<Box<MacTe>, TypeMistake> {
    let mut encoding = Encoding {
        encoded: MacTe::new_box_zeroed().map_err(|_| TypeMistake::NoMemory)?,
        numbers: BTreeMap::new(),
        pairs: 0,
    };
    encoding.names(settings)?;
    encoding.rules(settings)?;
    Ok(encoding.encoded)
}

struct Encoding {
    encoded: Box<MacTe>,
    numbers: BTreeMap<String, u16>,
    /// The number of pairs so far.
    pairs: u16,
}

impl Encoding {
    fn names(&mut self, settings: &TypeEnforcement) -> Result<(), TypeMistake> {
        let count = settings.domains.len() + settings.types.len();
        if count > MAXIMUM_NAMES {
            return Err(TypeMistake::TooManyNames(count));
        }
        let domains = settings.domains.keys().map(TypeName::as_ref);
        let types = settings.types.keys().map(TypeName::as_ref);
        let domains = [UNCONFINED].into_iter().chain(domains);
        let types = [UNTYPED, TERMINAL].into_iter().chain(types);
        self.encoded.domains = 1 + settings.domains.len() as u32;
        for (number, name) in (1..).zip(domains.chain(types)) {
            if self.numbers.insert(name.to_owned(), number).is_some() {
                return Err(TypeMistake::Repeated(name.to_owned()));
            }
            let text = &mut self.encoded.names[usize::from(number)].text;
            text[..name.len()].copy_from_slice(name.as_bytes());
        }
        self.encoded.seed = (1..=SEEDS)
            .find(|seed| self.take_places(*seed))
            .ok_or(TypeMistake::NoPlaces)?;
        Ok(())
    }

    /// Whether with this seed each name has a place of its own.
    fn take_places(&mut self, seed: u64) -> bool {
        self.encoded.places.fill(0);
        for number in self.numbers.values() {
            let place = place_of(&self.encoded.names[usize::from(*number)].text, seed);
            if std::mem::replace(&mut self.encoded.places[place], *number) != 0 {
                return false;
            }
        }
        true
    }

    fn rules(&mut self, settings: &TypeEnforcement) -> Result<(), TypeMistake> {
        let permissive: Vec<&TypeName> = match &settings.permissive {
            Permissive::Any => settings.domains.keys().collect(),
            Permissive::Domains(domains) => domains.iter().collect(),
        };
        for name in permissive {
            let domain = self.number(name)?;
            self.encoded.permissive[usize::from(domain / 64)] |= 1 << (domain % 64);
        }
        for (what, (words, _)) in &settings.allow {
            let permitted = bits(what.class, words.iter().copied());
            for one in settings.expand(what) {
                let domain = self.number(one.domain)?;
                if one.class == Class::Capability {
                    self.encoded.capabilities[usize::from(domain)] |= permitted;
                    continue;
                }
                let object = self.number(one.object)?;
                let pair = self.pair(domain, object)?;
                self.encoded.pairs[pair].allowed[one.class as usize] |= permitted as u32;
            }
        }
        for ((domain, program), (next, _)) in &settings.transitions {
            let next = self.number(next)?;
            let pair = self.pair(self.number(domain)?, self.number(program)?)?;
            self.encoded.pairs[pair].transition = next;
        }
        for (place, (created, _)) in &settings.creations {
            if !place.class.is_of_files() {
                return Err(TypeMistake::NotMade(place.class.word()));
            }
            let created = self.number(created)?;
            let pair = self.pair(self.number(&place.domain)?, self.number(&place.directory)?)?;
            self.encoded.pairs[pair].created[place.class as usize] = created;
        }
        self.relabels(settings)
    }

    fn relabels(&mut self, settings: &TypeEnforcement) -> Result<(), TypeMistake> {
        if settings.relabels.len() > MAXIMUM_RELABELS {
            return Err(TypeMistake::TooManyRelabels(settings.relabels.len()));
        }
        for (place, (domain, from, to)) in settings.relabels.keys().enumerate() {
            self.encoded.relabels[place] = MacTeRelabel {
                domain: self.number(domain)?,
                from: self.number(from)?,
                to: self.number(to)?,
                reserved: 0,
            };
            self.encoded.relabel_count += 1;
        }
        Ok(())
    }

    fn number(&self, name: &TypeName) -> Result<u16, TypeMistake> {
        let number = self.numbers.get(name.as_ref()).copied();
        number.ok_or_else(|| TypeMistake::Undeclared(name.to_string()))
    }

    /// The place of the rules for a domain and a type.
    fn pair(&mut self, domain: u16, object: u16) -> Result<usize, TypeMistake> {
        let cell = usize::from(domain) * MAC_TE_NAMES as usize + usize::from(object);
        let cell = &mut self.encoded.cells[cell];
        if *cell == 0 {
            if usize::from(self.pairs) == MAXIMUM_TYPE_RULES {
                return Err(TypeMistake::TooManyPairs);
            }
            self.pairs += 1;
            *cell = self.pairs;
        }
        Ok(usize::from(*cell))
    }
}

/// The place of a name, as the module finds it.
fn place_of(text: &[u8; MAC_TE_NAME as usize], seed: u64) -> usize {
    let (words, _) = text.as_chunks::<8>();
    let words = words.iter().map(|word| u64::from_ne_bytes(*word));
    let hash = words
        .take_while(|word| *word != 0)
        .fold(seed, |hash, word| {
            let hash = (hash ^ word).wrapping_mul(MULTIPLIER);
            hash ^ hash >> 32
        });
    (hash.wrapping_mul(MULTIPLIER) >> 52) as usize
}
