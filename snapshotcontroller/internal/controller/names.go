package controller

// Component is the name under which users see the events.
const Component = "snapshot-controller"

// LeaseName is the name of the Lease that the instances of a cluster compete for.
const LeaseName = "snapshot-controller-leader"

// Names of the work queues in metrics and logs.
const (
	QueueSnapshots = "snapshot-controller-snapshot"
	QueueClaims    = "snapshot-controller-claim"
	QueueGroups    = "snapshot-controller-group-snapshot"
)

// Reasons of the events on VolumeSnapshots. Those on VolumeGroupSnapshots have "Group" before "Snapshot", see groupReason.
const (
	// ReasonCreating: the content has existed for a while, the driver has not taken the snapshot yet.
	ReasonCreating = "CreatingSnapshot"
	// ReasonCreated: the driver has taken the snapshot, which is not ready yet.
	ReasonCreated = "SnapshotCreated"
	// ReasonReady: volumes can be restored from the snapshot.
	ReasonReady = "SnapshotReady"
	// ReasonCreationFailed: csi-snapshotter reports an error of the driver.
	ReasonCreationFailed = "SnapshotCreationFailed"
	// ReasonDeleteError: csi-snapshotter reports an error of the driver while the snapshot is being deleted.
	ReasonDeleteError = "SnapshotDeleteError"

	// ReasonClassFailed: the class that the snapshot names does not exist.
	ReasonClassFailed = "GetSnapshotClassFailed"
	// ReasonDefaultClassFailed: there is no default class for the driver, or more than one.
	ReasonDefaultClassFailed = "SetDefaultSnapshotClassFailed"
	// ReasonValidation: the snapshot cannot be taken as it is asked for.
	ReasonValidation = "SnapshotValidationError"
	// ReasonClaimMissing: the claim of the snapshot does not exist.
	ReasonClaimMissing = "SnapshotPVCSourceMissing"
	// ReasonContentCreationFailed: the volume of the claim is not known yet, or not one of a CSI driver.
	ReasonContentCreationFailed = "SnapshotContentCreationFailed"
	// ReasonCreateContentFailed: the API server refuses the content.
	ReasonCreateContentFailed = "CreateSnapshotContentFailed"
	// ReasonContentMissing: the content that the snapshot is bound to, or names, does not exist.
	ReasonContentMissing = "SnapshotContentMissing"
	// ReasonContentMismatch: a pre-provisioned snapshot has a content made of a volume, or the other way around.
	ReasonContentMismatch = "SnapshotContentMismatch"
	// ReasonContentMisbound: the content refers to another snapshot.
	ReasonContentMisbound = "SnapshotContentMisbound"
	// ReasonMisbound: the content of a snapshot that was bound to it refers to another snapshot.
	ReasonMisbound = "SnapshotMisbound"
	// ReasonBindFailed: the API server refuses to bind the content.
	ReasonBindFailed = "SnapshotBindFailed"
	// ReasonFinalizerError: the API server refuses finalizers.
	ReasonFinalizerError = "SnapshotFinalizerError"
	// ReasonStatusUpdateFailed: the API server refuses the status.
	ReasonStatusUpdateFailed = "SnapshotStatusUpdateFailed"
	// ReasonDeletePending: the snapshot is deleted when a restore has ended, or with its group.
	ReasonDeletePending = "SnapshotDeletePending"
	// ReasonContentDeleteError: the API server refuses to delete the content.
	ReasonContentDeleteError = "SnapshotContentObjectDeleteError"
	// ReasonClaimFinalizer: the API server refuses the finalizer of the claim.
	ReasonClaimFinalizer = "ErrorPVCFinalizer"

	// ReasonOrphan is an event on a VolumeSnapshotContent that was made for a VolumeSnapshot which does not exist: no deletion of one deletes it.
	ReasonOrphan = "ContentWithoutSnapshot"
	// ReasonContentValidation is an event on a VolumeSnapshotContent: its source has none, or both, of a volume and a snapshot.
	ReasonContentValidation = "ContentValidationError"
)
