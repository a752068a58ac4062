//! The labels of network interfaces.

use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};

use usher_bpf::{KernelError, Object, Pins, Plain, Table, run};
use usher_label::{ElementKind, Label};

use crate::Error;
use crate::dispatchers::{CODE, tables};
use crate::labels::INTERFACES;
use crate::shared::{
    MAC_INTERFACES, MacElement, MacInterface, MacLabel, MacModule, MacNumbered, MacNumbering,
    name_of,
};

/// Limit of interfaces with a label.
pub const MAX_INTERFACES: usize = MAC_INTERFACES as usize;

/// The program that numbers elements.
const NUMBER: &str = "number_element";

/// The elements of an interface's label that modules in force have.
type Elements = Vec<MacNumbered>;

/// The labels of interfaces.
pub(crate) struct Interfaces {
    place: Table<u32, u32>,
    /// The labels in force, with elements of modules that are not loaded; none before this process has set any.
    set: Option<BTreeMap<String, Label>>,
}

impl Interfaces {
    pub(crate) fn of(object: &Object) -> Result<Self, KernelError> {
        Ok(Self {
            place: object.table(INTERFACES)?,
            set: None,
        })
    }

    /// Replaces all labels at once. `modules` are those that have elements in force, by their slots.
    pub(crate) fn set(
        &mut self,
        pins: &Pins,
        modules: &[(u32, MacModule)],
        wanted: &BTreeMap<String, Label>,
    ) -> Result<(), Error> {
        if self.set.as_ref() == Some(wanted) {
            return Ok(());
        }
        self.exchange(pins, &elements(modules, wanted)?)?;
        self.set = Some(wanted.clone());
        Ok(())
    }

    /// Adds the elements of a module that comes into force to those in force.
    pub(crate) fn add(&self, pins: &Pins, modules: &[(u32, MacModule)]) -> Result<(), Error> {
        match &self.set {
            Some(set) => self.exchange(pins, &elements(modules, set)?),
            None => Ok(()),
        }
    }

    /// The labels that are in force for these modules.
    pub(crate) fn in_force(&self, modules: &[(u32, MacModule)]) -> BTreeMap<String, Label> {
        let set = self.set.iter().flatten();
        let labels = set.map(|(name, label)| (name.clone(), among(label, modules)));
        labels.filter(|(_, label)| !label.is_empty()).collect()
    }

    /// The kernel's id of the table in force, for the guard.
    pub(crate) fn id(&self) -> Result<Option<u32>, KernelError> {
        Ok(self.place.get(&0)?.filter(|id| *id != 0))
    }

    fn exchange(&self, pins: &Pins, elements: &BTreeMap<String, Elements>) -> Result<(), Error> {
        let table = Table::<MacInterface, MacLabel>::of_hash("mac_interfaces", MAC_INTERFACES)?;
        if !elements.is_empty() {
            let numbering = Numbering::load(pins)?;
            for (name, elements) in elements {
                let (interface, label) = numbering.number(name, elements)?;
                table.set(&interface, &label)?;
            }
        }
        let table = table.freeze()?;
        Ok(self.place.set(&0, &table.as_raw_fd().unsigned_abs())?)
    }
}

/// The elements of each label that these modules have.
///
/// # Errors
/// [`Error::TooManyInterfaces`], or [`Error::Interface`].
pub(crate) fn elements(
    modules: &[(u32, MacModule)],
    wanted: &BTreeMap<String, Label>,
) -> Result<BTreeMap<String, Elements>, Error> {
    if wanted.len() > MAX_INTERFACES {
        return Err(Error::TooManyInterfaces(wanted.len()));
    }
    let mut found = BTreeMap::new();
    for (name, label) in wanted {
        let mut elements = Elements::new();
        for (slot, module) in modules {
            elements.extend(element(name, label, *slot, module)?);
        }
        if !elements.is_empty() {
            found.insert(name.clone(), elements);
        }
    }
    Ok(found)
}

/// A module's element of an interface's label; none if the label has none of this module.
fn element(
    name: &str,
    label: &Label,
    slot: u32,
    module: &MacModule,
) -> Result<Option<MacNumbered>, Error> {
    let module_name = name_of(module);
    let kind = ElementKind::of_number(module.label);
    let (Some(kind), Some(value)) = (kind, label.value(&module_name)) else {
        return Ok(None);
    };
    let value = kind.read(value).map_err(|mistake| Error::Interface {
        interface: name.to_owned(),
        module: module_name,
        mistake,
    })?;
    let element = MacElement::read(&value.to_bytes());
    Ok(Some(MacNumbered {
        element: element.ok_or(KernelError::UnreadableEntry("elements"))?,
        order: module.order,
        slot,
        reserved: 0,
    }))
}

/// The part of a label that belongs to these modules.
fn among(label: &Label, modules: &[(u32, MacModule)]) -> Label {
    let names = modules.iter().map(|(_, module)| name_of(module));
    let names: BTreeSet<_> = names.collect();
    let elements = label.elements();
    let kept = elements.filter(|(name, _)| names.contains(name.as_ref()));
    kept.fold(Label::default(), |kept, (name, value)| {
        let one = Label::of_one(name.clone(), value.clone());
        // A part of a label is within the limits of one.
        kept.with(&one).unwrap_or(kept)
    })
}

/// The kernel's program that numbers elements.
struct Numbering {
    program: OwnedFd,
}

impl Numbering {
    fn load(pins: &Pins) -> Result<Self, KernelError> {
        let opened = CODE.open()?.pin(pins, Some(&tables()))?;
        let chosen = opened.choose(|program, _| Ok::<_, KernelError>(program == NUMBER))?;
        Ok(Self {
            program: chosen.load()?.program(NUMBER)?,
        })
    }

    /// An interface of this process's network namespace, and its label in numbers.
    fn number(
        &self,
        name: &str,
        elements: &Elements,
    ) -> Result<(MacInterface, MacLabel), KernelError> {
        let mut interface = MacInterface::zeroed();
        let mut label = MacLabel::zeroed();
        let place = interface.name.get_mut(..name.len());
        place
            .ok_or(KernelError::MissingPart("a name of an interface"))?
            .copy_from_slice(name.as_bytes());
        for element in elements {
            let mut question = MacNumbering::zeroed();
            question.wanted = *element;
            run(self.program.as_fd(), "number an element", &mut question)?;
            if question.number == 0 {
                return Err(KernelError::Full("elements"));
            }
            interface.network = question.network;
            label.elements[element.slot as usize] = question.number;
        }
        Ok((interface, label))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn module(name: &str, slot: u32, label: u32) -> (u32, MacModule) {
        let mut module = MacModule::zeroed();
        module.name[..name.len()].copy_from_slice(name.as_bytes());
        module.order = u64::from(slot) + 5;
        module.label = label;
        (slot, module)
    }

    fn labels(text: &str) -> BTreeMap<String, Label> {
        [("eth0".to_owned(), text.parse().unwrap())].into()
    }

    #[test]
    fn an_interface_has_the_elements_of_loaded_modules_with_labels() {
        let modules = [
            module("mls", 0, 1),
            module("none", 1, 0),
            module("part", 6, 3),
        ];
        let wanted = labels("biba/high,mls/low,none/x,part/7");
        let found = elements(&modules, &wanted).unwrap();
        let slots: Vec<_> = found["eth0"]
            .iter()
            .map(|one| (one.slot, one.order))
            .collect();
        assert_eq!(slots, [(0, 5), (6, 11)]);
        assert_eq!(found["eth0"][1].element.value[..4], 7_u32.to_ne_bytes());
        let of_modules = among(&wanted["eth0"], &modules[..1]);
        assert_eq!(of_modules.to_string(), "mls/low");
        assert!(elements(&modules[1..2], &wanted).unwrap().is_empty());
    }

    #[test]
    fn an_element_of_another_kind_is_refused() {
        let modules = [module("part", 0, 3)];
        let error = elements(&modules, &labels("part/high")).err();
        let told = error.unwrap().to_string();
        assert!(
            told.starts_with("interface eth0: the module part: `high` is not a number"),
            "{told}"
        );
        assert!(elements(&modules, &labels("part/1")).is_ok());
    }

    #[test]
    fn no_more_interfaces_than_the_kernel_holds() {
        let of = |count: usize| {
            let label: Label = "mls/low".parse().unwrap();
            let labels = (0..count).map(|number| (format!("eth{number}"), label.clone()));
            elements(&[module("mls", 0, 1)], &labels.collect())
        };
        assert_eq!(of(MAX_INTERFACES).unwrap().len(), MAX_INTERFACES);
        assert!(matches!(
            of(MAX_INTERFACES + 1),
            Err(Error::TooManyInterfaces(65))
        ));
    }
}
