//! The keeper's answers to control requests, among them its state for `usher who` and `usher doctor`.

use usher_bpf::Counted;
use usher_daemon::control::{Status, StatusView};
use usher_daemon::control_server::{Answers, Failed};
use usher_daemon::events;
use usher_kernel::ownership::Refusals;
use usher_local::configuration::Configuration;
use usher_local::requests::{
    Disable, Enable, Prepare, PreparedView, Recent, RecentView, Reload, ReloadedView, Troubles,
    TroublesView, Who, WhoView, WouldEnd, WouldEndView,
};
use usher_local::roles;
use usher_policy::ServedBy;

use super::Keeper;

impl Answers<Prepare> for Keeper {
    async fn answer(&self, request: Prepare) -> Result<PreparedView, Failed> {
        Configuration::prepare(request).await
    }
}

impl Answers<Reload> for Keeper {
    async fn answer(&self, _: Reload) -> Result<ReloadedView, Failed> {
        let ended = self.reload()?;
        // The sessions have ended already, because looking accounts up may take seconds. An account that is
        // not fenced after that is fenced when one of its processes first asks.
        self.host.look_accounts_up_in_time().await;
        Ok(self.settled(ended).await)
    }
}

impl Answers<Disable> for Keeper {
    async fn answer(&self, Disable { user, given }: Disable) -> Result<ReloadedView, Failed> {
        let fresh = self.host.configuration.disable(user.clone(), given);
        // Logged before anything can fail, because root has asked for it.
        tracing::info!(name: events::USER_DISABLED, %user, "root has disabled a user");
        Ok(self.settled(self.put_in_force(fresh)?).await)
    }
}

impl Answers<Enable> for Keeper {
    async fn answer(&self, Enable { user, since }: Enable) -> Result<ReloadedView, Failed> {
        let fresh = self.host.configuration.enable(&user, since);
        Ok(self.settled(self.put_in_force(fresh)?).await)
    }
}

impl Answers<Who> for Keeper {
    async fn answer(&self, _: Who) -> Result<WhoView, Failed> {
        let checked = &self.host.configuration.get().checked;
        Ok(WhoView {
            sessions: self.sessions.views()?,
            workers: self.queues.workers(),
            troubles: self.queues.common.troubles.view(checked),
        })
    }
}

impl Answers<Recent> for Keeper {
    async fn answer(&self, _: Recent) -> Result<RecentView, Failed> {
        let checked = &self.host.configuration.get().checked;
        Ok(self.sessions.table.recent.view(checked))
    }
}

impl Answers<Troubles> for Keeper {
    async fn answer(&self, _: Troubles) -> Result<TroublesView, Failed> {
        let checked = &self.host.configuration.get().checked;
        let troubles = self.queues.common.troubles.view(checked);
        Ok(TroublesView { troubles })
    }
}

impl Answers<Status> for Keeper {
    async fn answer(&self, _: Status) -> Result<StatusView, Failed> {
        let counters = self.host.admission.counters()?;
        let (failed, refused) = self.queues.common.troubles.totals();
        let numbers = [
            (
                "ends_waiting",
                self.sessions.table.unrecorded.waiting() as u64,
            ),
            ("sessions", self.sessions.table.presences.kept() as u64),
            ("connections", self.host.admissions()?.len() as u64),
            ("fence", u64::from(self.host.fence.missing().is_none())),
            (
                "limits_not_kept",
                self.queues.common.groups.missing().len() as u64,
            ),
            ("queues", self.queues.count() as u64),
            ("sessions_limit", self.limits.sessions.into()),
            ("connections_limit", self.limits.admissions.into()),
            ("queues_limit", self.limits.listeners.into()),
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
        status.numbers.extend(self.host.protected.numbers());
        status.numbers.extend(self.host.ports.numbers());
        let refusals = self.host.fence.refusals()?;
        let refusals = refusals.iter().flat_map(Refusals::named);
        status.numbers.extend(refusals);
        Ok(status)
    }
}

impl Answers<WouldEnd> for Keeper {
    async fn answer(&self, request: WouldEnd) -> Result<WouldEndView, Failed> {
        let candidate = Configuration::candidate(request.into_candidate()).await?;
        let ended = self.sessions.would_end(&candidate)?;
        Ok(WouldEndView { ended })
    }
}

impl Keeper {
    /// The troubles of this host, most of which keep sessions from being opened.
    fn troubles(&self) -> Vec<String> {
        let mut troubles: Vec<String> = self.following.trouble().into_iter().collect();
        troubles.extend(self.host.configuration.trouble());
        troubles.extend(self.host.ports.trouble());
        if !self.recording.is_connected() {
            troubles.push("not connected to the recorder, so no session is opened".to_owned());
        }
        let unanswered = self.queues.unanswered();
        if unanswered > 0 {
            troubles.push(format!(
                "the name service does not answer about {unanswered} account(s) that have sessions: those of \
                 them that are removed keep their sessions until it does (look at nsswitch.conf(5))"
            ));
        }
        let configuration = self.host.configuration.get();
        for service in configuration.checked.policy.services.values() {
            let name = &service.name;
            if let (ServedBy::Account(_), Some(reason)) =
                (&service.served_by, self.host.fence.missing())
            {
                troubles.push(format!("sessions with {name} are refused: {reason}"));
            }
            if let Some(account) = service.shared_account()
                && let Err(refusal) = self.host.shared_account(account)
            {
                troubles.push(format!(
                    "sessions with {name} are refused: its account {account}: {refusal}"
                ));
            }
            if let Err(refusal) = self.host.destinations.serves(service) {
                troubles.push(format!("sessions with {name} are refused: {refusal}"));
            }
            if let Some(reason) = self.host.protected.trouble(service) {
                troubles.push(format!("sessions with {name} are refused: {reason}"));
            }
        }
        troubles
    }
}
