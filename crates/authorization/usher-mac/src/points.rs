//! Entry points, as `bpf/include/usher_mac_policy.h` declares them.

use std::fmt;

use crate::shared::MAC_POINT_WORDS;

/// A set of entry points, as programs and this crate share it.
pub(crate) type Points = [u64; MAC_POINT_WORDS as usize];

/// A row of the table.
struct Declared {
    point: EntryPoint,
    name: &'static str,
    form: &'static str,
    hook: &'static str,
    request: &'static str,
    class: &'static str,
    kernel: &'static str,
    asked: &'static str,
}

include!(concat!(env!("OUT_DIR"), "/points.rs"));

impl EntryPoint {
    /// All, in the order of their numbers.
    pub fn all() -> impl ExactSizeIterator<Item = Self> + Clone {
        POINTS.iter().map(|declared| declared.point)
    }

    fn declared(self) -> &'static Declared {
        &POINTS[self as usize]
    }

    /// The name of the entry point.
    #[must_use]
    pub fn name(self) -> &'static str {
        self.declared().name
    }

    /// The kernel's hook whose dispatcher asks.
    #[must_use]
    pub fn hook(self) -> &'static str {
        self.declared().hook
    }

    /// The entry point of this name.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        Self::all().find(|point| point.name() == name)
    }

    /// The class of objects that the entry point is about.
    #[must_use]
    pub fn class(self) -> &'static str {
        self.declared().class
    }

    /// Adds the entry point to a set.
    pub(crate) fn add_to(self, set: &mut Points) {
        let (word, bit) = self.place();
        set[word] |= bit;
    }

    /// Whether the entry point is in a set.
    pub(crate) fn is_in(self, set: &Points) -> bool {
        let (word, bit) = self.place();
        set[word] & bit != 0
    }

    /// The word and the bit for the entry point in a set.
    fn place(self) -> (usize, u64) {
        let number = self as usize;
        let bits = u64::BITS as usize;
        (number / bits, 1 << (number % bits))
    }

    /// The page docs/mac-entry-points.md.
    #[must_use]
    pub fn page() -> String {
        let mut page = String::from(
            "# Entry points of policy modules\n\n\
         Made from the table in [usher_mac_policy.h](../bpf/include/usher_mac_policy.h) by the test \
         `the_page_of_entry_points_is_that_of_the_header`, which compares them.\n\n\
         A function of a module has the name of an entry point. It gets the process, a request, \
         and the module's own elements of labels. Its form is one of four:\n\n\
         - *check*: may the process do this? Each loaded module that declares it is asked, and \
         each refusal refuses; of `syscall` only the module that is called.\n\
         - *demoting*: a check that may permit the access on condition that the process gets another \
         element (`MAC_DEMOTING`). It gets it if all modules permit the access, and the access is \
         refused if it cannot.\n\
         - *relabel*: may an element of the module become another one? Only the module that \
         owns the element is asked; if it does not declare the entry point, the change is \
         refused.\n\
         - *decision*: the module may write the element that a new program or file is to have, or \
         refuse. Without it the element is the process's, or the one that the process has set for \
         its next program.\n\n\
         No program is attached to a hook that no loaded module needs. No function sleeps.\n\n\
         | entry point | form | class | hook | request | from kernel | asked when |\n\
         | --- | --- | --- | --- | --- | --- | --- |\n",
        );
        for declared in &POINTS {
            page.push_str(&format!(
                "| `{}` | {} | {} | {} | `struct {}` | {} | {} |\n",
                declared.name,
                declared.form.to_lowercase(),
                declared.class,
                declared.hook,
                declared.request,
                declared.kernel,
                declared.asked
            ));
        }
        page
    }
}

impl fmt::Display for EntryPoint {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.name())
    }
}
