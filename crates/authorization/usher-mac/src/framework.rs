//! The framework: dispatchers at hooks, and modules in their slots.

mod attachment;
mod denials;
mod interfaces;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use usher_bpf::{Counters, KernelError, Objects, Pins, Plain, Table};

use crate::declaration::SETTINGS;
use crate::dispatchers::{
    CODE, dispatcher, hooks, hooks_of, load_dispatchers, not_supported, programs, replacing,
    require_hooks, tables,
};
use crate::events::Events;
use crate::followed::Followed;
use crate::in_force::InForce;
use crate::interfaces::Interfaces;
use crate::labels::{self, Labels};
use crate::module::{SettingsTable, exchange};
use crate::shared::{
    MAC_LAYOUT, MAC_MODULES, MAC_NAME_SIZE, MAC_NONE, MacLabelled, MacModule, MacSlots, MacTe,
    name_of,
};
use crate::{
    EntryPoint, Error, Loaded, MAX_MODULES, Module, ModuleEvent, NewFileLabels, Settings,
    Unsupported,
};
use crate::{dispatchers, followed, shown};

/// Prefix of the folders of modules.
const SLOT: &str = "slot_";

/// The framework below one folder of pins. Dropping it changes nothing that is in force.
pub struct Framework {
    modules: Table<u32, MacModule>,
    in_force: InForce,
    refusals: Counters<u64>,
    lowered: Counters<u64>,
    events: Events,
    labels: Labels,
    interfaces: Interfaces,
    pub(crate) followed: Followed,
    /// By hook.
    dispatchers: BTreeMap<&'static str, OwnedFd>,
    /// The settings of `te` that this process has last put in force, in which the module notes its refusals.
    /// Opening them again would take CAP_SYS_ADMIN.
    notes: Option<Table<u32, MacTe>>,
    pins: Pins,
}

impl fmt::Debug for Framework {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("Framework")
            .field("pins", &self.pins.folder())
            .finish_non_exhaustive()
    }
}

impl Framework {
    /// Tries whether this kernel accepts dispatchers and a module in a slot, by loading some. Attaches
    /// nothing.
    ///
    /// # Errors
    /// The parts that this kernel lacks.
    pub fn probe() -> Result<(), Unsupported> {
        require_hooks()?;
        // The module with the largest checks, and the dispatchers that it needs.
        let module = Module::bsdextended(Vec::new());
        let hooks = hooks_of(&module).map_err(not_supported)?;
        let dispatchers = CODE.open().map_err(not_supported)?;
        let dispatchers = load_dispatchers(dispatchers, &hooks)?;
        let programs = programs(&dispatchers, &hooks).map_err(not_supported)?;
        let (opened, _) = replacing(&module, 0, &programs).map_err(not_supported)?;
        opened.try_load().map_err(|reason| {
            not_supported(format!(
                "it refuses a program in a slot of another: {reason}"
            ))
        })?;
        Ok(())
    }

    /// Makes the framework below this folder of a BPF file system, or adopts what an earlier process has
    /// made there: all that is in force stays in force. Half-done work of a process is undone. A new
    /// framework attaches nothing; a dispatcher is loaded with the first module that needs it.
    ///
    /// # Errors
    /// [`Error::Unsupported`]; the kernel's error for pins of another layout, or that another process
    /// holds.
    pub fn open(directory: &Path) -> Result<Self, Error> {
        let pins = Pins::lock(directory)?;
        pins.require_layout(MAC_LAYOUT)?;
        let is_whole = pins
            .table::<u32, [u32; 2]>("layout")?
            .map_or(Ok(None), |layout| layout.get(&0))?
            .is_some_and(|[version, _]| version == MAC_LAYOUT);
        if !is_whole {
            require_hooks()?;
            // Pins of a process that ended before it had attached anything.
            pins.remove()?;
        }
        // Tables only.
        let opened = CODE.open()?.pin(&pins, Some(&tables()))?;
        let object = opened.choose(|_, _| Ok::<_, KernelError>(false))?.load()?;
        let mut dispatchers = BTreeMap::new();
        for hook in hooks() {
            if let Some(program) = pins.program(&dispatcher(hook))? {
                dispatchers.insert(hook, program);
            }
        }
        let mut framework = Self {
            modules: object.table("modules")?,
            in_force: InForce::of(&object)?,
            refusals: object.counters("refusals")?,
            lowered: object.counters("lowered")?,
            events: Events::of(&object, &pins)?,
            labels: Labels::of(&object)?,
            interfaces: Interfaces::of(&object)?,
            followed: Followed::of(&object)?,
            dispatchers,
            notes: None,
            pins,
        };
        if !is_whole {
            // Loads one now, so that a kernel that refuses dispatchers does so here.
            framework.require_dispatchers(&[EntryPoint::FileOpen.hook()].into())?;
            framework.pins.note_layout(&object, MAC_LAYOUT)?;
        }
        framework.undo_halves()?;
        Ok(framework)
    }

    /// Puts a module in force, at once at all entry points that it declares.
    ///
    /// # Errors
    /// [`Error::Loaded`], [`Error::NoSlot`], [`Error::Interface`], those of the settings, or the kernel's
    /// error. Nothing has changed then.
    pub fn load(&mut self, module: &Module) -> Result<(), Error> {
        let settings = module.settings.as_ref().map(Settings::table).transpose()?;
        let loaded = self.in_slots()?;
        if loaded.iter().any(|(_, one)| name_of(one) == module.name) {
            return Err(Error::Loaded(module.name().into()));
        }
        let free = (0..MAC_MODULES).find(|slot| loaded.iter().all(|(taken, _)| taken != slot));
        let slot = free.ok_or_else(|| Error::NoSlot(module.name().into()))?;
        self.require_dispatchers(&hooks_of(module)?)?;
        let order = self.in_force.next_order()?;
        let descriptor = settings.as_ref().map(|settings| &settings.descriptor);
        let put = self.put(module, descriptor, slot, order);
        let put = put.and_then(|entry| self.label_interfaces(loaded, (slot, entry)));
        if put.is_err() {
            self.release(slot)?;
            return put;
        }
        // The module is in force from here on. Its labels come first, because it needs them to decide.
        let enabled = self.in_force.enabled()? | MacSlots::of(slot);
        self.set_labelled(enabled)?;
        self.in_force.enable(enabled)?;
        self.keep_notes(settings);
        Ok(())
    }

    fn keep_notes(&mut self, settings: Option<SettingsTable>) {
        if let Some(notes) = settings.and_then(|settings| settings.notes) {
            self.notes = Some(notes);
        }
    }

    /// Loads the dispatchers of these hooks that no module has needed before. They stay with the framework.
    pub(crate) fn require_dispatchers(
        &mut self,
        hooks: &BTreeSet<&'static str>,
    ) -> Result<(), Error> {
        let missing = hooks.iter().copied();
        let missing = missing.filter(|hook| !self.dispatchers.contains_key(hook));
        let missing: BTreeSet<_> = missing.collect();
        if missing.is_empty() {
            return Ok(());
        }
        let opened = CODE.open()?.pin(&self.pins, Some(&tables()))?;
        let object = load_dispatchers(opened, &missing)?;
        for (hook, program) in programs(&object, &missing)? {
            object.keep_program(&dispatcher(hook), &self.pins)?;
            self.dispatchers.insert(hook, program);
        }
        Ok(())
    }

    /// Puts the labels of the modules in these slots in force.
    fn set_labelled(&self, among: MacSlots) -> Result<(), Error> {
        let mut labelled = MacLabelled::zeroed();
        for slot in among.slots() {
            let module = self.modules.get(&slot)?.unwrap_or(MacModule::zeroed());
            if module.label != MAC_NONE {
                let own = MacSlots::of(slot);
                labelled.slots |= own;
                if module.exempts_without_element != 0 {
                    labelled.exempting |= own;
                }
                if module.decides_by_labels != 0 {
                    labelled.by_labels |= own;
                }
                labelled.order = labelled.order.max(module.order);
            }
        }
        Ok(self.in_force.label(labelled)?)
    }

    /// Writes a module into the tables, except for the bit that enables it.
    fn put(
        &self,
        module: &Module,
        settings: Option<&OwnedFd>,
        slot: u32,
        order: u64,
    ) -> Result<MacModule, Error> {
        let mut entry = MacModule::zeroed();
        entry.name[..module.name.len()].copy_from_slice(module.name.as_bytes());
        entry.order = order;
        let declared = module.declaration()?;
        entry.label = declared.label;
        entry.exempts_without_element = declared.exempts_without_element.into();
        entry.decides_by_labels = declared.decides_by_labels.into();
        let pins = Pins::lock(&self.folder(slot))?;
        let (opened, points) = replacing(module, slot, &self.dispatchers)?;
        for point in &points {
            point.add_to(&mut entry.points);
        }
        let tables: &[&str] = if settings.is_some() { &[SETTINGS] } else { &[] };
        let object = opened.pin(&pins, Some(tables))?.load();
        let object = object.map_err(|error| Error::Refused {
            name: module.name().into(),
            error,
        })?;
        if let Some(settings) = settings {
            exchange(&object.table(SETTINGS)?, settings)?;
        }
        object.keep_all(&pins)?;
        self.modules.set(&slot, &entry)?;
        self.lowered.reset_at(slot)?;
        self.in_force.declare(&points, MacSlots::of(slot))?;
        for point in points {
            self.refusals.reset_at(place(point, slot))?;
            self.attach(point.hook())?;
        }
        if entry.label != MAC_NONE {
            // A program may have counted while the former module was released.
            self.labels.forget(slot)?;
            labels::HOOKS
                .into_iter()
                .try_for_each(|hook| self.attach(hook))?;
        }
        Ok(entry)
    }

    /// Replaces a module's settings, at once.
    ///
    /// # Errors
    /// [`Error::NotLoaded`], [`Error::OtherSettings`], those of the settings, or the kernel's error. The
    /// former settings are in force then.
    pub fn configure(&mut self, name: &str, settings: &Settings) -> Result<(), Error> {
        let slot = self.slot_of(name)?;
        if settings.module() != name {
            return Err(Error::OtherSettings(name.into()));
        }
        let fresh = settings.table()?;
        let place = Pins::lock(&self.folder(slot))?.required_table(SETTINGS)?;
        exchange(&place, &fresh.descriptor)?;
        self.keep_notes(Some(fresh));
        Ok(())
    }

    /// Whether a module in force has settings.
    ///
    /// # Errors
    /// [`Error::NotLoaded`], or the kernel's error.
    pub fn has_settings(&self, name: &str) -> Result<bool, Error> {
        let slot = self.slot_of(name)?;
        let place = Pins::lock(&self.folder(slot))?.table::<u32, u32>(SETTINGS)?;
        Ok(place.is_some())
    }

    /// Ends a module, at once, and detaches every hook that no other module declares.
    ///
    /// # Errors
    /// [`Error::NotLoaded`], or the kernel's error: the module no longer decides then, and the next
    /// [`Framework::open`] releases the rest of it.
    pub fn unload(&mut self, name: &str) -> Result<(), Error> {
        let slot = self.slot_of(name)?;
        let mut enabled = self.in_force.enabled()?;
        enabled &= !MacSlots::of(slot);
        self.in_force.enable(enabled)?;
        self.set_labelled(enabled)?;
        self.release(slot)
    }

    /// Removes all of a module that is not enabled.
    fn release(&self, slot: u32) -> Result<(), Error> {
        let module = self.modules.get(&slot)?.unwrap_or(MacModule::zeroed());
        if module.label != MAC_NONE {
            self.labels.forget(slot)?;
        }
        let mut unused = hooks();
        // This hook stays attached as long as the framework is there.
        unused.remove(followed::HOOK);
        let keeps_labels = self.in_force.labelled()?.slots != MacSlots::NONE;
        if keeps_labels {
            unused.retain(|hook| !labels::HOOKS.contains(hook));
        }
        for point in self.in_force.withdraw(MacSlots::of(slot))? {
            unused.remove(point.hook());
        }
        for hook in unused {
            self.detach(hook)?;
        }
        if !keeps_labels {
            self.labels.forget_objects()?;
        }
        let folder = self.folder(slot);
        if usher_bpf::exists(&folder)? {
            let pins = Pins::lock(&folder)?;
            pins.remove()?;
            pins.remove_folder()?;
        }
        Ok(self.modules.set(&slot, &MacModule::zeroed())?)
    }

    /// Releases modules that an earlier process has half loaded or half unloaded.
    fn undo_halves(&self) -> Result<(), Error> {
        let enabled = self.in_force.enabled()?;
        self.set_labelled(enabled)?;
        let mut halves = (!enabled).slots();
        halves.try_for_each(|slot| self.release(slot))
    }

    /// The modules in force, in the order of loading.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn modules(&self) -> Result<Vec<Loaded>, Error> {
        let mut in_slots = self.in_slots()?;
        in_slots.sort_by_key(|(_, module)| module.order);
        let loaded = in_slots.iter().enumerate().map(|(order, (slot, module))| {
            let points = EntryPoint::all().filter(|point| point.is_in(&module.points));
            let entry_points: Vec<_> = points.collect();
            let mut refusals = Vec::new();
            for point in &entry_points {
                let count = self.refusals.read_at(place(*point, *slot))?;
                if count > 0 {
                    refusals.push((*point, count));
                }
            }
            Ok(Loaded {
                name: name_of(module),
                slot: *slot as usize,
                order,
                entry_points,
                refusals,
                lowered: self.lowered.read_at(*slot)?,
            })
        });
        loaded.collect()
    }

    /// Refusals of files on multilabel file systems whose label was not known.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn unknown_refusals(&self) -> Result<u64, Error> {
        Ok(self.labels.unknown_refusals()?)
    }

    /// The events of modules in force since the last call of any process, at most about a thousand, and
    /// whether there are more. Only one process reads them.
    ///
    /// # Errors
    /// The kernel's error; those that were taken are lost then.
    pub fn take_events(&self) -> Result<(Vec<ModuleEvent>, bool), Error> {
        self.events.take()
    }

    /// The number of events that were lost, because no process read them in time.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn lost_events(&self) -> Result<u64, Error> {
        self.events.lost()
    }

    /// Everything that is pinned or in use below the folder, for the guard. It changes with each
    /// [`Framework::load`], [`Framework::configure`] and [`Framework::unload`].
    ///
    /// # Errors
    /// The kernel's error.
    pub fn objects(&self) -> Result<Objects, Error> {
        let mut objects = Objects::default();
        objects.collect(self.pins.folder())?;
        for (slot, _) in self.in_slots()? {
            let place = Pins::lock(&self.folder(slot))?.table::<u32, u32>(SETTINGS)?;
            // The kernel returns the id of the inner table.
            let settings = place.map_or(Ok(None), |place| place.get(&0))?;
            objects.maps.extend(settings.filter(|id| *id != 0));
        }
        objects.maps.extend(self.interfaces.id()?);
        Ok(objects)
    }

    /// Sets the devices (major and minor numbers) whose files have labels of their own, in their attributes.
    /// Files on all other devices have none.
    ///
    /// # Errors
    /// The kernel's error; some devices may be set then.
    pub fn set_multilabel(&self, devices: &BTreeSet<(u32, u32)>) -> Result<(), Error> {
        labels::set_multilabel(&self.pins, &self.in_force, devices)
    }

    /// Sets the families of sockets (`AF_VSOCK`, ...) that processes with a level may make besides those about
    /// which the modules of levels decide. All others are refused.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn permit_families(&self, families: &BTreeSet<u32>) -> Result<(), Error> {
        Ok(self.in_force.permit_families(families)?)
    }

    /// Requires that new files on multilabel file systems get labels from this kernel.
    ///
    /// # Errors
    /// [`Error::NewFilesUnlabelled`].
    pub fn require_new_files() -> Result<(), Error> {
        dispatchers::require_new_files()
    }

    /// The labels of new files.
    ///
    /// # Errors
    /// As [`NewFileLabels::open`].
    pub fn new_file_labels(&self) -> Result<NewFileLabels, Error> {
        NewFileLabels::open(&self.pins)
    }

    /// The place in the order of loading that the newest module with labels in force has; 0 if there is none.
    /// When it has changed, the next open(2) of a file reads the file's label from the attribute again.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn label_order(&self) -> Result<u64, Error> {
        Ok(self.in_force.labelled()?.order)
    }

    /// Shows the labels of processes to every process, in a folder of the BPF file system
    /// ([`usher_bpf::hide`] ends that).
    ///
    /// # Errors
    /// The kernel's error, or that of a folder which is not root's alone.
    pub fn show_labels(&self, folder: &Path) -> Result<(), Error> {
        shown::show(&self.pins, folder)
    }

    /// Unloads all modules and removes all pins, with the folder.
    ///
    /// # Errors
    /// The kernel's error; some may be in force then.
    pub fn close(self) -> Result<(), Error> {
        self.in_force.enable(MacSlots::NONE)?;
        // No module is enabled, so this releases all of them.
        self.undo_halves()?;
        self.pins.remove()?;
        Ok(self.pins.remove_folder()?)
    }

    fn folder(&self, slot: u32) -> PathBuf {
        self.pins.folder().join(format!("{SLOT}{slot}"))
    }

    /// The modules in force, by their slots.
    fn in_slots(&self) -> Result<Vec<(u32, MacModule)>, Error> {
        let enabled = self.in_force.enabled()?;
        let modules = enabled.slots().map(|slot| {
            let module = self.modules.get(&slot)?;
            Ok((slot, module.ok_or(KernelError::UnreadableEntry("modules"))?))
        });
        modules.collect()
    }

    fn slot_of(&self, name: &str) -> Result<u32, Error> {
        let in_slots = self.in_slots()?;
        let found = in_slots.iter().find(|(_, module)| name_of(module) == name);
        let (slot, _) = found.ok_or_else(|| Error::NotLoaded(name.into()))?;
        Ok(*slot)
    }
}

const _: () = assert!(MAX_MODULES == MAC_MODULES as usize && MAC_NAME_SIZE == 32);

/// The place of an entry point's refusals by the module in a slot.
fn place(point: EntryPoint, slot: u32) -> u32 {
    point as u32 * MAC_MODULES + slot
}
