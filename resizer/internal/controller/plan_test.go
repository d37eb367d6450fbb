package controller

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

const testDriver = "test.csi.longshore.example"

const (
	inProgress     = corev1.PersistentVolumeClaimControllerResizeInProgress
	infeasible     = corev1.PersistentVolumeClaimControllerResizeInfeasible
	nodePending    = corev1.PersistentVolumeClaimNodeResizePending
	nodeInProgress = corev1.PersistentVolumeClaimNodeResizeInProgress
	nodeInfeasible = corev1.PersistentVolumeClaimNodeResizeInfeasible
)

func list(size string) corev1.ResourceList {
	if size == "" {
		return nil
	}
	return corev1.ResourceList{corev1.ResourceStorage: resource.MustParse(size)}
}

// TestPlanExpand has every row of the table of KEP-1790, as the external-resizer decides it, for a claim of 1Gi.
func TestPlanExpand(t *testing.T) {
	tests := map[string]struct {
		reason                      string
		requested, pv               string // default of pv: 1Gi
		allocated                   string
		status                      corev1.ClaimResourceStatus
		fsPending, nodeOnly, failed bool
		want                        string // empty: nothing
	}{
		"Enough":                  {reason: "the claim has what it asks for", requested: "1Gi", status: inProgress, allocated: "2Gi"},
		"New":                     {reason: "a new request", requested: "3Gi", want: "3Gi"},
		"NewAfterOld":             {reason: "what was allocated to the expansion before does not matter", requested: "3Gi", allocated: "1Gi", want: "3Gi"},
		"SmallNodePending":        {reason: "the node has to complete the expansion before this one", requested: "3Gi", pv: "2Gi", allocated: "2Gi", status: nodePending},
		"SmallNodeInProgress":     {reason: "the same", requested: "3Gi", pv: "2Gi", allocated: "2Gi", status: nodeInProgress},
		"SmallNodePendingLost":    {reason: "the volume does not have yet what the node waits for", requested: "3Gi", allocated: "2Gi", status: nodePending, want: "2Gi"},
		"SmallNodeInProgressLost": {reason: "the same", requested: "3Gi", allocated: "2Gi", status: nodeInProgress, want: "2Gi"},
		"SmallNodePendingUnset":   {reason: "without an allocation, the request counts", requested: "3Gi", status: nodePending, want: "3Gi"},
		"SmallNodeInfeasible":     {reason: "the size that the node refused is verified first", requested: "3Gi", pv: "2Gi", allocated: "2Gi", status: nodeInfeasible, want: "2Gi"},
		"SmallInProgress":         {reason: "the driver may be working on the size in the status", requested: "2Gi", allocated: "3Gi", status: inProgress, want: "3Gi"},
		"SmallInProgressLarger":   {reason: "the same for a larger request", requested: "4Gi", allocated: "3Gi", status: inProgress, want: "3Gi"},
		"SmallInProgressFailed":   {reason: "the driver has failed for good, the user may ask for less", requested: "2Gi", allocated: "3Gi", status: inProgress, failed: true, want: "2Gi"},
		"SmallInfeasible":         {reason: "the size was not possible, the user may ask for less", requested: "2Gi", allocated: "3Gi", status: infeasible, want: "2Gi"},
		"LargeNodePending":        {reason: "the rest is for the node", requested: "2Gi", pv: "2Gi", allocated: "2Gi", status: nodePending},
		"LargeNodeInProgress":     {reason: "the same", requested: "2Gi", pv: "3Gi", allocated: "3Gi", status: nodeInProgress},
		"LargeNodeInfeasible":     {reason: "the volume has that size, a smaller request does not help", requested: "2Gi", pv: "3Gi", allocated: "3Gi", status: nodeInfeasible, want: "3Gi"},
		"LargeNodeOnly":           {reason: "only the node expands, and has not", requested: "2Gi", pv: "3Gi", allocated: "3Gi", status: nodeInfeasible, nodeOnly: true, want: "2Gi"},
		"LargeInProgress":         {reason: "the volume was recorded, the claim was not", requested: "2Gi", pv: "2Gi", allocated: "2Gi", status: inProgress, want: "2Gi"},
		"LargeInProgressFailed":   {reason: "the same, whatever the last answer was", requested: "2Gi", pv: "3Gi", allocated: "3Gi", status: inProgress, failed: true, want: "3Gi"},
		"LargeInfeasible":         {reason: "the same", requested: "2Gi", pv: "3Gi", allocated: "3Gi", status: infeasible, want: "3Gi"},
		"LargeAllocated":          {reason: "an expansion without a state is completed", requested: "2Gi", pv: "3Gi", allocated: "3Gi", want: "3Gi"},
		"LargeFSPending":          {reason: "an older resizer has left the rest to the node", requested: "2Gi", pv: "2Gi", fsPending: true},
		"LargeNothing":            {reason: "the claim lacks what its volume has", requested: "2Gi", pv: "3Gi", want: "2Gi"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			claim := &corev1.PersistentVolumeClaim{}
			claim.Spec.Resources.Requests = list(tt.requested)
			claim.Status.Capacity, claim.Status.AllocatedResources = list("1Gi"), list(tt.allocated)
			if tt.status != "" {
				setResizeStatus(claim, tt.status)
			}
			if tt.fsPending {
				setCondition(claim, corev1.PersistentVolumeClaimFileSystemResizePending, "", "")
			}
			pv := &corev1.PersistentVolume{}
			pv.Spec.Capacity = list("1Gi")
			if tt.pv != "" {
				pv.Spec.Capacity = list(tt.pv)
			}
			plan := planExpand(volume{claim: claim, pv: pv}, attempt{target: tt.allocated, final: tt.failed}, !tt.nodeOnly)
			got := ""
			if plan.verdict == doExpand {
				got = plan.size.String()
			}
			if got != tt.want {
				t.Errorf("%s: expand to %q, want %q", tt.reason, got, tt.want)
			}
		})
	}
}

// TestPlanModify has every row of the state machine of KEP-3751.
func TestPlanModify(t *testing.T) {
	const (
		pending    = corev1.PersistentVolumeClaimModifyVolumePending
		progress   = corev1.PersistentVolumeClaimModifyVolumeInProgress
		infeasible = corev1.PersistentVolumeClaimModifyVolumeInfeasible
	)
	class := func(name, driver string) *storagev1.VolumeAttributesClass {
		return &storagev1.VolumeAttributesClass{ObjectMeta: metav1.ObjectMeta{Name: name}, DriverName: driver}
	}
	classes := map[string]*storagev1.VolumeAttributesClass{
		"gold": class("gold", testDriver), "silver": class("silver", testDriver), "foreign": class("foreign", "other.example"),
	}
	type plan struct {
		Verdict verdict
		Target  string
	}
	tests := map[string]struct {
		reason                  string
		wanted, current, target string
		status                  corev1.PersistentVolumeClaimModifyVolumeStatus
		failed                  bool // the last attempt
		blamed                  bool // the claim shows an error
		want                    plan
	}{
		"None":               {reason: "no class"},
		"Current":            {reason: "the class is in effect", wanted: "gold", current: "gold"},
		"ErrorLeft":          {reason: "an error of a modification that is not wanted any more", wanted: "gold", current: "gold", blamed: true, want: plan{doCancel, ""}},
		"Removed":            {reason: "a class in effect is not taken away", current: "gold"},
		"New":                {reason: "another class", wanted: "gold", current: "silver", want: plan{doModify, "gold"}},
		"First":              {reason: "the first class", wanted: "gold", want: plan{doModify, "gold"}},
		"Missing":            {reason: "a class that comes later", wanted: "late", want: plan{doWait, "late"}},
		"Foreign":            {reason: "a class of another driver", wanted: "foreign", want: plan{doWait, "foreign"}},
		"Pending":            {reason: "the class has come", wanted: "gold", target: "gold", status: pending, want: plan{doModify, "gold"}},
		"PendingCanceled":    {reason: "the user does not wait for it any more", target: "late", status: pending, want: plan{doCancel, ""}},
		"PendingBack":        {reason: "back to the class in effect", wanted: "gold", current: "gold", target: "late", status: pending, want: plan{doModify, "gold"}},
		"Uncertain":          {reason: "the driver may be applying it", wanted: "gold", target: "gold", status: progress, want: plan{doModify, "gold"}},
		"UncertainOther":     {reason: "it comes before another one", wanted: "silver", target: "gold", status: progress, want: plan{doModify, "gold"}},
		"UncertainTaken":     {reason: "and before none", target: "gold", status: progress, want: plan{doModify, "gold"}},
		"FailedTaken":        {reason: "also after an error, as it may have been applied in part", target: "gold", status: progress, failed: true, want: plan{doModify, "gold"}},
		"FailedOther":        {reason: "nothing is in progress, another one may be applied", wanted: "silver", target: "gold", status: progress, failed: true, want: plan{doModify, "silver"}},
		"FailedSame":         {reason: "the same once more", wanted: "gold", target: "gold", status: progress, failed: true, want: plan{doModify, "gold"}},
		"UncertainGone":      {reason: "nobody knows what it set; the next one is applied", wanted: "silver", target: "late", status: progress, want: plan{doModify, "silver"}},
		"UncertainGoneSame":  {reason: "it has to come back", wanted: "late", target: "late", status: progress, want: plan{doWait, "late"}},
		"UncertainGoneTaken": {reason: "the same", target: "late", status: progress, want: plan{doWait, "late"}},
		"Infeasible":         {reason: "tried again", wanted: "gold", target: "gold", status: infeasible, want: plan{doModify, "gold"}},
		"InfeasibleCanceled": {reason: "nothing of it was applied", target: "gold", status: infeasible, want: plan{doCancel, ""}},
		"InfeasibleOther":    {reason: "another one", wanted: "silver", target: "gold", status: infeasible, want: plan{doModify, "silver"}},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			claim := &corev1.PersistentVolumeClaim{}
			if tt.wanted != "" {
				claim.Spec.VolumeAttributesClassName = &tt.wanted
			}
			if tt.current != "" {
				claim.Status.CurrentVolumeAttributesClassName = &tt.current
			}
			if tt.status != "" {
				setModifyStatus(claim, tt.target, tt.status)
				setCondition(claim, corev1.PersistentVolumeClaimVolumeModifyingVolume, "", "")
			}
			if tt.blamed {
				setCondition(claim, corev1.PersistentVolumeClaimVolumeModifyVolumeError, "", "")
			}
			pv := &corev1.PersistentVolume{}
			pv.Spec.CSI = &corev1.CSIPersistentVolumeSource{Driver: testDriver}
			got := planModify(volume{claim: claim, pv: pv}, attempt{target: tt.target, final: tt.failed},
				func(name string) *storagev1.VolumeAttributesClass { return classes[name] })
			if diff := cmp.Diff(tt.want, plan{got.verdict, got.target}); diff != "" {
				t.Errorf("%s (-want +got):\n%s", tt.reason, diff)
			}
			if got.verdict == doModify && (got.class == nil || got.class.Name != got.target) {
				t.Errorf("%s: the plan has class %v", tt.reason, got.class)
			}
		})
	}
}

// TestControllerIsDone: a failure is not recorded on a claim whose expansion was completed, in spite of an error of the API server.
func TestControllerIsDone(t *testing.T) {
	for name, tt := range map[string]struct {
		capacity, allocated string
		status              corev1.ClaimResourceStatus
		want                bool
	}{
		"InProgress":  {capacity: "1Gi", allocated: "2Gi", status: inProgress},
		"NotBegun":    {capacity: "1Gi"},
		"ForTheNode":  {capacity: "1Gi", allocated: "2Gi", status: nodePending, want: true},
		"OneBefore":   {capacity: "1Gi", allocated: "1536Mi", status: nodePending},
		"Complete":    {capacity: "2Gi", allocated: "2Gi", want: true},
		"NodeRefuses": {capacity: "1Gi", allocated: "2Gi", status: corev1.PersistentVolumeClaimNodeResizeInfeasible},
	} {
		t.Run(name, func(t *testing.T) {
			claim := &corev1.PersistentVolumeClaim{
				Spec:   corev1.PersistentVolumeClaimSpec{Resources: corev1.VolumeResourceRequirements{Requests: list("2Gi")}},
				Status: corev1.PersistentVolumeClaimStatus{Capacity: list(tt.capacity)},
			}
			if tt.status != "" {
				setResizeStatus(claim, tt.status)
			}
			if tt.allocated != "" {
				claim.Status.AllocatedResources = list(tt.allocated)
			}
			if got := controllerIsDone(claim, resource.MustParse("2Gi")); got != tt.want {
				t.Errorf("got %t", got)
			}
		})
	}
}
