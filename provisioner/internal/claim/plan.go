package claim

import (
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/longshore-csi/longshore/provisioner/internal/capabilities"
	"github.com/longshore-csi/longshore/provisioner/internal/journal"
	"github.com/longshore-csi/longshore/provisioner/internal/view"
)

// finalizerInUse keeps a claim that is being deleted while a pod uses it.
const finalizerInUse = "kubernetes.io/pvc-protection"

// claimVerb is what is to be done about a claim.
type claimVerb int

const (
	// claimLeave: nothing; an event of the API will say when there is.
	claimLeave claimVerb = iota
	// claimRefuse: report what is wrong by an event, and wait until it changes.
	claimRefuse
	// claimPopulator: report by an event that a volume populator provisions the volume.
	claimPopulator
	// claimCreate: call CreateVolume for the first time.
	claimCreate
	// claimResume: go on with a volume in progress.
	claimResume
	// claimStrip: remove what a former version has put on the claim.
	claimStrip
	// claimCompete: compete with other nodes for the claim.
	claimCompete
)

// claimState is all that the decision about a claim depends on.
type claimState struct {
	// driver is the name of our driver.
	driver string
	// caps is what the driver can do.
	caps capabilities.Set
	// claim is the claim in the cache, nil when there is none with its UID any more.
	claim *corev1.PersistentVolumeClaim
	// intent is the open intent of the claim, nil when there is none.
	intent *journal.Intent
	// class is the StorageClass of the claim, nil when it does not exist.
	class *storagev1.StorageClass
	// inTree is the name of the in-tree plugin that the class is of, empty for CSI; class is in CSI form. classErr says why it has none.
	inTree   string
	classErr error
	// pv is the PersistentVolume under the name that the claim's volume has.
	pv *corev1.PersistentVolume
	// node is the node that the instance provisions for, and competes says that it competes with others for claims.
	node     view.Node
	competes bool
	// excluded says why that node may not have the volume.
	excluded error
	// former says that a former version has marked the claim, as its volume may exist.
	former bool
}

// claimPlan is the decision about a claim.
type claimPlan struct {
	verb claimVerb
	// why explains the decision: to the log, and to the user where the verb says so.
	why string
}

// leave is the plan to do nothing.
func leave(why string) claimPlan {
	return claimPlan{verb: claimLeave, why: why}
}

// refuse is the plan to report a reason by an event.
func refuse(format string, args ...any) claimPlan {
	return claimPlan{verb: claimRefuse, why: fmt.Sprintf(format, args...)}
}

// planClaim decides what is to be done about a claim. An open intent comes before everything else:
// nothing that is found out about the claim or its class may end work that may still be running.
func planClaim(s claimState) claimPlan {
	switch {
	case s.intent != nil:
		return claimPlan{verb: claimResume, why: "volume is in progress: " + string(s.intent.Stage)}
	case s.claim != nil && isMarked(s.claim) && s.node.AssignedElsewhere(s.claim) == "" && view.DriverOf(s.claim) == s.driver:
		return planFormer(s)
	}
	return planNew(s)
}

// planNew decides about a claim of which no volume is in progress here.
func planNew(s claimState) claimPlan {
	if plan, ok := planForeign(s); ok {
		return plan
	}
	return planOurs(s)
}

// planOurs decides about a claim that is ours to provision.
func planOurs(s claimState) claimPlan {
	if s.pv != nil {
		return planExisting(s)
	}
	for _, obstacle := range []func(claimState) (claimPlan, bool){planWaiting, planNode, planUnsupported} {
		if plan, ok := obstacle(s); ok {
			return plan
		}
	}
	return claimPlan{verb: claimCreate, why: "needs a volume"}
}

// isFor reports whether a PersistentVolume is that of a claim.
func isFor(pv *corev1.PersistentVolume, claim types.UID) bool {
	return pv.Spec.ClaimRef != nil && pv.Spec.ClaimRef.UID == claim
}

// madeElsewhere reports whether the driver of another node has made the volume of a PersistentVolume: the view shows no source of it.
func madeElsewhere(pv *corev1.PersistentVolume, node view.Node) bool {
	return node.Alone() && pv.Spec.CSI == nil
}

// planForeign finds claims that are not ours to provision, or not any more.
func planForeign(s claimState) (claimPlan, bool) {
	switch {
	case s.claim == nil:
		return leave("claim is gone"), true
	case leaving(s.claim):
		return leave("claim is being deleted"), true
	case s.claim.Spec.VolumeName != "":
		return leave("claim is bound"), true
	case view.DriverOf(s.claim) != s.driver:
		return leave("claim is for another provisioner"), true
	}
	return claimPlan{}, false
}

// planExisting looks at the PersistentVolume that is already there under the volume's name.
func planExisting(s claimState) claimPlan {
	if isFor(s.pv, s.claim.UID) {
		return leave("volume exists")
	}
	return refuse("volume name %q is taken by a PersistentVolume that is not for this claim", s.pv.Name)
}

// planWaiting finds claims that something is missing for which an event will announce.
func planWaiting(s claimState) (claimPlan, bool) {
	switch {
	case s.class == nil:
		return leave("storage class does not exist"), true
	case s.class.Provisioner != s.driver:
		return leave("storage class is for another provisioner"), true
	case view.WaitsForConsumer(s.class) && view.SelectedNode(s.claim) == "":
		return leave("no node was selected yet"), true
	}
	return claimPlan{}, false
}

// planUnsupported finds claims that ask for what the driver, or this version, cannot do.
func planUnsupported(s claimState) (claimPlan, bool) {
	if plan, ok := planSource(s); ok {
		return plan, true
	}
	switch {
	case !s.caps.Create:
		return refuse("CSI driver %q cannot create volumes: it lacks the capability CONTROLLER_SERVICE or CREATE_DELETE_VOLUME", s.driver), true
	case s.claim.Spec.Selector != nil:
		return refuse("claim field spec.selector: must not be set, a new volume has no labels to select it by"), true
	case s.caps.Attributes && attributesClass(s.claim) != "" && !s.caps.Modify:
		return refuse("claim asks for VolumeAttributesClass %q: CSI driver %q lacks the capability MODIFY_VOLUME",
			attributesClass(s.claim), s.driver), true
	}
	return claimPlan{}, false
}

// attributesClass returns the VolumeAttributesClass of the claim.
func attributesClass(claim *corev1.PersistentVolumeClaim) string {
	if claim.Spec.VolumeAttributesClassName != nil {
		return *claim.Spec.VolumeAttributesClassName
	}
	return ""
}

// wants reports whether a claim still wants the volume of that name, which is being made for it. A claim that is bound to
// another volume keeps that.
func wants(claim *corev1.PersistentVolumeClaim, name string) bool {
	return !leaving(claim) && (claim.Spec.VolumeName == "" || claim.Spec.VolumeName == name)
}

// leaving reports whether a claim is being deleted and no pod needs it any more: Kubernetes keeps the finalizer
// pvc-protection for as long as a pod refers to the claim, and such a pod may wait for the volume.
func leaving(claim *corev1.PersistentVolumeClaim) bool {
	return claim.DeletionTimestamp != nil && !slices.Contains(claim.Finalizers, finalizerInUse)
}

// planSource looks at what the volume is to be filled with.
func planSource(s claimState) (claimPlan, bool) {
	source, ok := view.DataSource(s.claim)
	switch {
	case !ok:
		return claimPlan{}, false
	case !view.Served(source):
		return claimPlan{verb: claimPopulator, why: fmt.Sprintf("Assuming that a volume populator provisions volumes with a data source of kind %q", source.Kind)}, true
	case source.Kind == view.KindClaim && !s.caps.Clone:
		return refuse("data source of kind %q: CSI driver %q lacks the capability CLONE_VOLUME", source.Kind, s.driver), true
	case source.Kind == view.KindSnapshot && !s.caps.Snapshot:
		return refuse("data source of kind %q: CSI driver %q lacks the capability CREATE_DELETE_SNAPSHOT", source.Kind, s.driver), true
	}
	return claimPlan{}, false
}
