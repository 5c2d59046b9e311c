//! The verbs, one method each.

use std::time::Duration;

use tokio::time::Instant;

use super::*;
use crate::client::random;
use crate::wire::{Kind, MapGet, NodeId, PartitionId, StatusGet};

impl Admin {
    /// The cluster's status as the first node sees it that hears a majority of the directory; if none does, what one of
    /// the others sees ([`Status::majority`] tells). `local`: what the first node that answers knows itself. Endpoints
    /// that do not answer cost 100 ms each.
    ///
    /// ```no_run
    /// # async fn example(admin: coppice_client::Admin) -> Result<(), coppice_client::admin::Error> {
    /// let status = admin.status(false).await?;
    /// println!("survives the loss of {} more nodes", status.tolerated_failures);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`Error::Unreachable`] if no node answers within the timeout; [`Error::Refused`].
    pub async fn status(&self, local: bool) -> Result<Status, Error> {
        let whom = if local { Whom::Anybody } else { Whom::Members };
        self.any(whom, Kind::Status, &StatusGet { local }, Kind::StatusReply, "status").await
    }

    /// The map of a node that hears a majority of the directory, and who leads.
    ///
    /// ```no_run
    /// # async fn example(admin: coppice_client::Admin) -> Result<(), coppice_client::admin::Error> {
    /// let map = admin.cluster_map().await?;
    /// println!("{:?}", map.map);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`Error::Unreachable`]; [`Error::NoMajority`]: no node that answers hears a majority; [`Error::Refused`].
    pub async fn cluster_map(&self) -> Result<MapReply, Error> {
        match self.verb(AdminRequest::Map).await? {
            AdminReply::Map(reply) => Ok(reply),
            other => Err(Error::Incompatible(format!("an answer to another question: {other:?}"))),
        }
    }

    /// The map of the first node that answers, and who leads.
    ///
    /// ```no_run
    /// # async fn example(admin: coppice_client::Admin) -> Result<(), coppice_client::admin::Error> {
    /// let map = admin.map().await?;
    /// println!("{:?}", map.map);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`Error::Unreachable`] if no node answers within the timeout; [`Error::Refused`].
    pub async fn map(&self) -> Result<MapReply, Error> {
        self.any(Whom::Members, Kind::MapGet, &MapGet::default(), Kind::Map, "map").await
    }

    /// Who the first node that answers is.
    ///
    /// ```no_run
    /// # async fn example(admin: coppice_client::Admin) -> Result<(), coppice_client::admin::Error> {
    /// let hello = admin.hello().await?;
    /// println!("{:?} of cluster {:?}", hello.node, hello.cluster);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`Error::Unreachable`] if no node answers within the timeout; [`Error::Refused`].
    pub async fn hello(&self) -> Result<HelloOk, Error> {
        let mut errors = Vec::new();
        let deadline = Instant::now() + self.config.timeout;
        for (at, address) in self.endpoints.iter().enumerate() {
            let until = Until::share(deadline, self.endpoints.len() - at, &self.config, Duration::ZERO);
            match connect(address, &self.config, until.greeted).await {
                Ok((_, hello)) => return Ok(hello),
                Err(Attempt::Refused(refusal)) => return Err(Error::Refused(refusal)),
                Err(Attempt::Silent(error) | Attempt::Unanswered(error)) => {
                    errors.push(error_of(address, error));
                }
                Err(Attempt::Answered(..) | Attempt::Blank) => {}
            }
        }
        Err(Error::Unreachable(errors))
    }

    /// Forms the cluster: asks the first endpoint; others are asked only if it was not reached.
    ///
    /// ```no_run
    /// # async fn example(admin: coppice_client::Admin) -> Result<(), coppice_client::admin::Error> {
    /// use coppice_client::admin::InitRequest;
    /// let init = InitRequest { partitions: 4, if_needed: true, ..InitRequest::default() };
    /// admin.init(init).await?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`AdminError::Exists`] if there is a cluster (and `if_needed` is not set), [`AdminError::Invalid`];
    /// [`Error::Unreachable`], [`Error::Unanswered`], [`Error::Refused`].
    pub async fn init(&self, init: InitRequest) -> Result<AdminReply, Error> {
        self.verb(AdminRequest::Init(InitRequest { nonce: random(), ..init })).await
    }

    /// Effective settings: the cluster's, and those of the node that answers.
    ///
    /// ```no_run
    /// # async fn example(admin: coppice_client::Admin) -> Result<(), coppice_client::admin::Error> {
    /// for row in admin.config().await? {
    ///     println!("{} = {} ({})", row.key, row.value, row.origin);
    /// }
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`Error::Unreachable`] if no node answers, [`Error::NoMajority`] if none that does hears a majority,
    /// [`Error::Refused`] with [`Refusal::Denied`] if this client's user is no admin for all keys.
    pub async fn config(&self) -> Result<Vec<ConfigRow>, Error> {
        match self.verb(AdminRequest::ConfigGet).await? {
            AdminReply::Config(rows) => Ok(rows),
            other => Err(Error::Incompatible(format!("an answer to another question: {other:?}"))),
        }
    }

    /// Sets a cluster setting.
    ///
    /// ```no_run
    /// # async fn example(admin: coppice_client::Admin) -> Result<(), coppice_client::admin::Error> {
    /// admin.set_config("sessions_max", "20000").await?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`AdminError::NotFound`]: there is no such setting. [`AdminError::Invalid`]: it cannot have that value.
    /// [`AdminError::TimedOut`]: the directory did not decide it in time. [`Error::Unanswered`]: it may be set. Others
    /// as [`Admin::config`].
    pub async fn set_config(&self, key: &str, value: &str) -> Result<(), Error> {
        self.verb(AdminRequest::ConfigSet { key: key.into(), value: value.into() }).await.map(|_| ())
    }

    /// Returns a cluster setting to its default.
    ///
    /// ```no_run
    /// # async fn example(admin: coppice_client::Admin) -> Result<(), coppice_client::admin::Error> {
    /// admin.unset_config("sessions_max").await?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As [`Admin::set_config`].
    pub async fn unset_config(&self, key: &str) -> Result<(), Error> {
        self.verb(AdminRequest::ConfigUnset { key: key.into() }).await.map(|_| ())
    }

    /// Sets what the node that answers logs, until it restarts: give one endpoint. `spec` as in `COPPICE_LOG`.
    ///
    /// ```no_run
    /// # async fn example(admin: coppice_client::Admin) -> Result<(), coppice_client::admin::Error> {
    /// admin.set_log_level("debug").await?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`AdminError::Invalid`]: `spec` is no filter. [`Error::Unreachable`], [`Error::Unanswered`]; [`Error::Refused`]
    /// with [`Refusal::Denied`].
    pub async fn set_log_level(&self, spec: &str) -> Result<(), Error> {
        self.verb(AdminRequest::LogLevel { spec: spec.into() }).await.map(|_| ())
    }

    /// Transfers the leadership of a partition; returns how long nobody led.
    ///
    /// ```no_run
    /// # async fn example(admin: coppice_client::Admin) -> Result<(), coppice_client::admin::Error> {
    /// use coppice_client::{NodeId, PartitionId};
    /// use std::time::Duration;
    /// let pause = admin.transfer_leader(PartitionId(1), NodeId(2), Duration::from_secs(5)).await?;
    /// println!("nobody led for {pause:?}");
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`AdminError::TimedOut`]: the old leader goes on, or the transfer ends later. [`AdminError::Unavailable`]: no
    /// leader is known or reached; nothing was done. [`AdminError::Refused`], [`AdminError::Invalid`]: why it must not
    /// be done. [`Error::Unanswered`]: it may be done. Others as [`Admin::config`].
    pub async fn transfer_leader(
        &self,
        partition: PartitionId,
        to: NodeId,
        deadline: Duration,
    ) -> Result<Duration, Error> {
        let deadline_ms = u32::try_from(deadline.as_millis()).unwrap_or(u32::MAX);
        match self.verb(AdminRequest::TransferLeader { partition, to, deadline_ms }).await? {
            AdminReply::Transferred { pause_us } => Ok(Duration::from_micros(pause_us)),
            AdminReply::Done => Ok(Duration::ZERO),
            other => Err(Error::Incompatible(format!("an answer to another question: {other:?}"))),
        }
    }

    /// How batching and pipelining of every group are tuned, and why.
    ///
    /// ```no_run
    /// # async fn example(admin: coppice_client::Admin) -> Result<(), coppice_client::admin::Error> {
    /// for group in admin.tuning().await?.groups {
    ///     println!("{} is led by {}", group.partition, group.leader);
    /// }
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As [`Admin::config`].
    pub async fn tuning(&self) -> Result<TuningReport, Error> {
        match self.verb(AdminRequest::Tuning { local: false }).await? {
            AdminReply::Tuning(report) => Ok(report),
            other => Err(Error::Incompatible(format!("an answer to another question: {other:?}"))),
        }
    }

    /// The users, by name.
    ///
    /// ```no_run
    /// # async fn example(admin: coppice_client::Admin) -> Result<(), coppice_client::admin::Error> {
    /// for user in admin.users().await? {
    ///     println!("{} has {} tokens", user.name, user.tokens);
    /// }
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`Error::Unreachable`], [`Error::NoMajority`]; [`Error::Refused`] with [`Refusal::Denied`] if this client's user
    /// is no admin.
    pub async fn users(&self) -> Result<Vec<UserRow>, Error> {
        match self.verb(AdminRequest::Users).await? {
            AdminReply::Users(rows) => Ok(rows),
            other => Err(Error::Incompatible(format!("an answer to another question: {other:?}"))),
        }
    }

    /// Changes the users. Once it is answered, every node that the answer does not name goes by the change.
    ///
    /// ```no_run
    /// # async fn example(admin: coppice_client::Admin) -> Result<(), coppice_client::admin::Error> {
    /// use coppice_client::admin::UserChange;
    /// let changed = admin.change_users(UserChange::Remove { name: "ann".into() }).await?;
    /// println!("not yet confirmed by {:?}", changed.behind);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// Any [`AdminError`]: why it is not taken. [`Error::Unanswered`]: it may be. Others as [`Admin::users`].
    pub async fn change_users(&self, change: UserChange) -> Result<UserChangeReply, Error> {
        match self.verb(AdminRequest::ChangeUsers(change)).await? {
            AdminReply::UsersChanged(changed) => Ok(changed),
            other => Err(Error::Incompatible(format!("an answer to another question: {other:?}"))),
        }
    }

    /// Begins a change of the cluster's shape, or says how far it is: ask again, with the same request, until it is
    /// done.
    ///
    /// ```no_run
    /// # async fn example(admin: coppice_client::Admin) -> Result<(), coppice_client::admin::Error> {
    /// use coppice_client::NodeId;
    /// use coppice_client::admin::{ChangeId, ReshapeRequest, Shape};
    /// let request = ReshapeRequest {
    ///     change: ChangeId(0x5eed), // drawn at random, the same for every repetition
    ///     shape: Shape::DrainNode { node: NodeId(3) },
    ///     dry_run: false,
    ///     force: false,
    ///     within: None,
    /// };
    /// while !admin.reshape(request.clone()).await?.done {
    ///     tokio::time::sleep(std::time::Duration::from_millis(500)).await;
    /// }
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// Any [`AdminError`]: why it is not begun, or how it failed. [`Error::Unanswered`]: it may be begun. Others as
    /// [`Admin::config`].
    pub async fn reshape(&self, request: ReshapeRequest) -> Result<Reshaped, Error> {
        match self.verb(AdminRequest::Reshape(request)).await? {
            AdminReply::Reshaped(reshaped) => Ok(reshaped),
            other => Err(Error::Incompatible(format!("an answer to another question: {other:?}"))),
        }
    }
}
