package controller

import "github.com/longshore-csi/longshore/csikit/snapshotapi"

// verdict is what to do next with a content.
type verdict int

const (
	// doNothing: the content has what it asks for, or waits for the snapshot-controller.
	doNothing verdict = iota
	// doCreate: take the snapshot, or find out whether it was taken.
	doCreate
	// doRelease: remove the annotation being-created, as the outcome is known.
	doRelease
	// doRead: ask the driver about a snapshot that is not known to be ready to use.
	doRead
	// doMembers: record the members of a group snapshot that an earlier version has not recorded in the status.
	doMembers
	// doDelete: delete the snapshot, then let the content go.
	doDelete
	// doFinish: let the content go; there is no snapshot, or it stays.
	doFinish
)

// String returns the name of the step for users and /debug/state.
func (v verdict) String() string {
	return [...]string{"none", "create", "release", "read", "members", "delete", "finish"}[v]
}

// plan decides what to do next with a content, which is the driver's. The order of a deletion is the contract with the
// snapshot-controller: a content is let go when its snapshot is known to be gone, or was never taken, or is to stay.
func plan(n names, r record, last attempt) verdict {
	if r.deleting && !r.protected(n.finalizer) {
		return doNothing // others hold it
	}
	if r.deleting && r.has(snapshotapi.AnnAbandon) {
		return doFinish // the admin decides
	}
	dynamic := len(r.volumes) > 0 && !r.member
	if isUncertain(n, r, last) {
		return doCreate // also of a content that is being deleted: a snapshot that may exist must be found first
	}
	switch {
	case r.has(n.beingCreated), r.labelled:
		return doRelease
	case r.deleting:
		return planDelete(n, r)
	case r.handle() == "":
		if dynamic {
			return doCreate
		}
		return doNothing // a member whose group snapshot is not taken yet
	}
	return planTaken(r)
}

// planTaken decides about a content that is to stay, and whose snapshot exists.
func planTaken(r record) verdict {
	switch {
	case !r.isReady(), r.behind, r.status.failed: // an error must not outlive what it was about
		return doRead
	case r.membersMissing:
		return doMembers
	}
	return doNothing
}

// planDelete decides about a content that is being deleted and whose snapshot is not being taken.
func planDelete(n names, r record) verdict {
	unbound := r.given != "" && r.ref.UID == ""
	switch {
	case !unbound && !r.has(n.beingDeleted):
		return doNothing // the VolumeSnapshot is not deleted
	case r.retain, r.member, r.status.group != "", r.handle() == "":
		return doFinish
	}
	return doDelete
}

// isUncertain reports whether there may be a snapshot whose handle is not known.
func isUncertain(n names, r record, last attempt) bool {
	return len(r.volumes) > 0 && !r.member && r.status.handle == "" && mayExist(n, r, last)
}

// mayExist reports whether the driver may be taking the snapshot, or may have taken it, and its handle is not known. What is not
// remembered, as after a restart, the content says: it has being-created from before the first call until the outcome is known, both as an
// annotation and as a label.
func mayExist(n names, r record, last attempt) bool {
	switch last.outcome {
	case outcomeUncertain:
		return true
	case outcomeSettled:
		return false
	default:
		return r.has(n.beingCreated) || r.labelled
	}
}
