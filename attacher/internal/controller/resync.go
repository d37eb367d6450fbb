package controller

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"github.com/longshore-csi/longshore/csikit/logging"
	"github.com/longshore-csi/longshore/csikit/migration"
)

// errEndlessList is a ListVolumes that leads back to a page that was read before.
var errEndlessList = errors.New("driver returned a page token for the second time")

// expectation is what the VolumeAttachments say of one volume on one node.
type expectation struct {
	name            string
	uid             types.UID
	resourceVersion string
	handle, nodeID  string
	// recordedNodeID is what the volume was attached to. It differs from nodeID, which is registered, when the driver has
	// changed the format of its IDs; the driver may list either.
	recordedNodeID string
	attached       bool
}

func newExpectation(va *storagev1.VolumeAttachment, handle, nodeID string) expectation {
	return expectation{
		name: va.Name, uid: va.UID, resourceVersion: va.ResourceVersion, attached: va.Status.Attached,
		handle: handle, nodeID: nodeID, recordedNodeID: va.Annotations[AnnotationNodeID],
	}
}

// publication is a volume on a node.
type publication struct{ handle, nodeID string }

// publications has those that are expected, with whether the driver lists them.
type publications map[publication]bool

// expect has the publications of e not listed yet.
func (p publications) expect(e expectation) {
	p[publication{e.handle, e.nodeID}] = false
	p[publication{e.handle, e.recordedNodeID}] = false
}

// has reports whether the driver lists the volume on the node.
func (p publications) has(e expectation) bool {
	return p[publication{e.handle, e.nodeID}] || p[publication{e.handle, e.recordedNodeID}]
}

// add notes which of the expected publications the driver lists.
func (p publications) add(entries []*csi.ListVolumesResponse_Entry) {
	for _, entry := range entries {
		for _, node := range entry.GetStatus().GetPublishedNodeIds() {
			listed := publication{entry.GetVolume().GetVolumeId(), node}
			if _, expected := p[listed]; expected {
				p[listed] = true
			}
		}
	}
}

// mismatches returns the expectations that the list contradicts, and that hold: an object that has changed or was worked on while
// the list was being read proves nothing.
func mismatches(expected []expectation, published publications, holds func(expectation) bool) []expectation {
	var wrong []expectation
	for _, e := range expected {
		if published.has(e) != e.attached && holds(e) {
			wrong = append(wrong, e)
		}
	}
	slices.SortFunc(wrong, func(x, y expectation) int { return cmp.Compare(x.name, y.name) })
	return wrong
}

// confirmed splits off those that were wrong in the same way the last time.
func confirmed(wrong []expectation, suspects map[types.UID]bool) (sure []expectation, next map[types.UID]bool) {
	next = map[types.UID]bool{}
	for _, e := range wrong {
		if was, ok := suspects[e.uid]; ok && was == e.attached {
			sure = append(sure, e)
			continue
		}
		next[e.uid] = e.attached
	}
	return sure, next
}

// resync remembers what the last comparison has found. The zero value is ready to use.
type resync struct {
	mu       sync.Mutex
	suspects map[types.UID]bool // by VolumeAttachment, what it said of attached
	last     ResyncState
}

// ResyncState is the result of the last comparison with the driver's list.
type ResyncState struct {
	Last     time.Time `json:"last,omitzero"`
	Error    string    `json:"error,omitempty"`
	Compared int       `json:"compared"`
	Suspects int       `json:"suspects"`
	Total    int       `json:"corrections"`
}

func (r *resync) state() ResyncState {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.last
}

// note records a comparison and returns what to correct.
func (r *resync) note(compared int, wrong []expectation, err error) []expectation {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.last.Last = time.Now()
	if err != nil {
		r.last.Error = err.Error()
		return nil
	}
	var sure []expectation
	sure, r.suspects = confirmed(wrong, r.suspects)
	r.last.Error, r.last.Compared, r.last.Suspects = "", compared, len(r.suspects)
	r.last.Total += len(sure)
	return sure
}

// newCorrections makes the counter of corrections, registered with reg unless that is nil.
func newCorrections(reg prometheus.Registerer, driver string) *prometheus.CounterVec {
	vec := prometheus.NewCounterVec(prometheus.CounterOpts{
		Name:        "csi_attacher_reconcile_corrections_total",
		Help:        "VolumeAttachments that contradicted ListVolumes twice in a row and were attached again, by their status.attached.",
		ConstLabels: prometheus.Labels{"driver_name": driver},
	}, []string{"attached"})
	for _, attached := range []bool{true, false} {
		vec.WithLabelValues(strconv.FormatBool(attached)) // shown as 0 from the start
	}
	if reg != nil {
		reg.MustRegister(vec)
	}
	return vec
}

// firstCompare is the part of the interval after which the first comparison is made: when
// the work that was found at the start is done, which would look like a mismatch.
const firstCompare = 6

// runResync compares soon after the start, then in intervals.
func (c *Controller) runResync(ctx context.Context) error {
	if c.cfg.ReconcileSync <= 0 {
		return nil
	}
	timer := time.NewTimer(c.cfg.ReconcileSync / firstCompare)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-timer.C:
			c.compare(ctx)
			timer.Reset(c.cfg.ReconcileSync)
		}
	}
}

// compare reads what the driver has attached, and attaches again what should be attached and is not.
func (c *Controller) compare(ctx context.Context) {
	if !c.features().ListPublished {
		return
	}
	expected := c.expectations()
	if len(expected) == 0 {
		return
	}
	published, err := c.listPublished(ctx, expected)
	if ctx.Err() != nil {
		return
	}
	logger := klog.FromContext(ctx)
	if err != nil {
		logger.Error(err, "Comparing attachments with the driver's list ended early")
	}
	sure := c.resync.note(len(expected), mismatches(expected, published, c.holds), err)
	for _, e := range sure {
		c.correct(klog.NewContext(ctx, logger.WithValues(logging.KeyAttachment, e.name)), e)
	}
}

// expectations returns what the driver should list. VolumeAttachments that are being deleted or in progress are left out. The
// PersistentVolume is decoded only where the VolumeAttachment does not record the handle, and by holds for what seems wrong.
func (c *Controller) expectations() []expectation {
	list := make([]expectation, 0, c.resync.state().Compared) // as many as the last time
	replaces, nodeIDs := migration.Replaces(c.cfg.Driver), map[string]string{}
	for va := range c.vas.All() {
		if !c.ours(va) || isDeleting(va) || c.vaQueue.IsRunning(va.Name) {
			continue
		}
		nodeID, known := nodeIDs[va.Spec.NodeName]
		if !known {
			csiNode, _ := c.csiNodes.Get("", va.Spec.NodeName)
			nodeID = csiNodeID(csiNode, c.cfg.Driver)
			nodeIDs[va.Spec.NodeName] = nodeID
		}
		nodeID = cmp.Or(nodeID, va.Annotations[AnnotationNodeID])
		handle := va.Annotations[AnnotationVolumeHandle]
		if handle == "" || replaces {
			handle = c.expectedHandle(va, nodeID)
		}
		if handle != "" && nodeID != "" {
			list = append(list, newExpectation(va, handle, nodeID))
		}
	}
	return list
}

// expectedHandle is expectedHandle with the PersistentVolume of the cache.
func (c *Controller) expectedHandle(va *storagev1.VolumeAttachment, nodeID string) string {
	pv, _ := c.pvs.Get("", pvName(va))
	return expectedHandle(va, pv, nodeID)
}

// expectedHandle returns the handle under which the driver should list the volume of va, "" if that is not known.
func expectedHandle(va *storagev1.VolumeAttachment, pv *corev1.PersistentVolume, nodeID string) string {
	source, err := newSource(va, pv)
	if err != nil {
		return ""
	}
	volume, err := source.csi(va.Spec.Attacher)
	if err != nil {
		return ""
	}
	if handle := va.Annotations[AnnotationVolumeHandle]; handle != "" && handle != volume.VolumeHandle {
		return "" // the PersistentVolume was re-created and says nothing about the volume in use
	}
	handle, err := listedHandle(va.Spec.Attacher, source, volume.VolumeHandle, nodeID)
	if err != nil {
		return ""
	}
	return handle
}

// holds reports whether the objects are what they were when the list began, and the volume is the one that is attached.
func (c *Controller) holds(e expectation) bool {
	va, ok := c.vas.Get("", e.name)
	return ok && !c.vaQueue.IsRunning(e.name) && newExpectation(va, c.expectedHandle(va, e.nodeID), e.nodeID) == e
}

// listPublished reads all pages of ListVolumes and keeps what is expected.
func (c *Controller) listPublished(ctx context.Context, expected []expectation) (publications, error) {
	published := make(publications, len(expected))
	for _, e := range expected {
		published.expect(e)
	}
	request := &csi.ListVolumesRequest{MaxEntries: c.cfg.MaxEntries}
	seen := map[string]bool{}
	for {
		response, err := c.listPage(ctx, request)
		if err != nil {
			return nil, err
		}
		published.add(response.GetEntries())
		next := response.GetNextToken()
		switch {
		case next == "":
			return published, nil
		case seen[next]:
			return nil, fmt.Errorf("list volumes from %q: %w", next, errEndlessList)
		}
		seen[next] = true
		request.StartingToken = next
	}
}

// listPage reads one page; each has the whole deadline.
func (c *Controller) listPage(ctx context.Context, request *csi.ListVolumesRequest) (*csi.ListVolumesResponse, error) {
	ctx, cancel := c.csiDeadline(ctx)
	defer cancel()
	response, err := c.cfg.CSI.ListVolumes(ctx, request)
	if err != nil {
		return nil, fmt.Errorf("list volumes from %q: %w", request.GetStartingToken(), err)
	}
	return response, nil
}

// correct queues a VolumeAttachment that contradicts the list: to be attached again, or to have its status saved.
func (c *Controller) correct(ctx context.Context, e expectation) {
	va, ok := c.vas.Get("", e.name)
	if !ok || !c.holds(e) {
		return
	}
	message := fmt.Sprintf("driver lists volume %q as published to node ID %q, the VolumeAttachment says it is not: attaching", e.handle, e.nodeID)
	if e.attached {
		message = fmt.Sprintf("driver does not list volume %q as published to node ID %q, the VolumeAttachment says it is: attaching again", e.handle, e.nodeID)
		c.forced.Store(e.uid, nil)
	}
	klog.FromContext(ctx).Info("Attachment contradicts the driver's list twice, attaching", logging.KeyState, e.attached,
		logging.KeyVolumeID, e.handle, logging.KeyNodeID, e.nodeID)
	pv, _ := c.pvs.Get("", pvName(va))
	source, _ := newSource(va, pv)
	c.warn(va, source, ReasonStateMismatch, fmt.Sprintf("node %q: %s", va.Spec.NodeName, message))
	c.corrections.WithLabelValues(strconv.FormatBool(e.attached)).Inc()
	c.wake(va)
}
