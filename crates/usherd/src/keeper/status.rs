//! The keeper's state for `usher who` and `usher doctor`.

use usher_bpf::Counted;
use usher_daemon::control::StatusView;
use usher_kernel::KernelError;
use usher_kernel::ownership::Refusals;
use usher_local::requests::WhoView;
use usher_local::roles;
use usher_policy::ServedBy;

use super::Keeper;

impl Keeper {
    /// Sessions with their connections, and workers.
    pub(super) fn who(&self) -> Result<WhoView, KernelError> {
        Ok(WhoView {
            sessions: self.sessions.views()?,
            workers: self.queues.workers(),
            troubles: self
                .queues
                .common
                .troubles
                .view(&self.host.configuration.get().checked),
        })
    }

    /// Table fill and counters.
    pub(super) fn status(&self) -> Result<StatusView, KernelError> {
        let counters = self.host.admission.counters()?;
        let (failed, refused) = self.queues.common.troubles.totals();
        let numbers = [
            (
                "ends_waiting",
                self.sessions.table.unrecorded.waiting() as u64,
            ),
            ("sessions", self.host.admission.sessions()?.len() as u64),
            (
                "connections",
                self.host.admission.admissions()?.len() as u64,
            ),
            ("fence", u64::from(self.host.fence.missing().is_none())),
            (
                "limits_not_kept",
                self.queues.common.groups.missing().len() as u64,
            ),
            ("queues", self.queues.list().len() as u64),
            ("failed_starts", failed),
            ("waiting_refused", refused),
            (
                "recorder_connected",
                u64::from(self.recording.is_connected()),
            ),
        ];
        let mut status = StatusView::new::<roles::Keeper>(
            self.host.configuration.get().generation(),
            numbers,
            self.troubles(),
        );
        status.numbers.extend(counters.named());
        status.numbers.extend(self.host.destinations.numbers());
        status.numbers.extend(self.host.ports.numbers());
        let refusals = self.host.fence.refusals()?;
        let refusals = refusals.iter().flat_map(Refusals::named);
        status.numbers.extend(refusals);
        Ok(status)
    }

    /// The reasons that sessions cannot be opened.
    fn troubles(&self) -> Vec<String> {
        let mut troubles = Vec::new();
        if !self.recording.is_connected() {
            troubles.push("not connected to the recorder, so no session is opened".to_owned());
        }
        let configuration = self.host.configuration.get();
        for service in configuration.checked.policy.services.values() {
            let name = &service.name;
            if let (ServedBy::Account(_), Some(reason)) =
                (&service.served_by, self.host.fence.missing())
            {
                troubles.push(format!("sessions with {name} are refused: {reason}"));
            }
            if let Err(refusal) = self.host.destinations.serves(service) {
                troubles.push(format!("sessions with {name} are refused: {refusal}"));
            }
        }
        troubles
    }
}
