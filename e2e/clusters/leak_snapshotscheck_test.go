package clusters

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	groupv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumegroupsnapshot/v1"
	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/longshore-csi/longshore/csikit/snapshotapi"
	"github.com/longshore-csi/longshore/csikittest/csitest"
	"github.com/longshore-csi/longshore/e2e/testbed"
)

// theirPatience is how long a pair with a half of kubernetes-csi's may change nothing before the rest is taken for lost: both of their halves
// resync all objects every 30 seconds here.
const theirPatience = 75 * time.Second

// judge looks at what has come of everything, step by step: first as it is, then with all snapshots deleted, and with the contents that stay
// deleted, and with the claims deleted.
func (l *snapshotLeaks) judge() {
	l.T.Helper()
	l.T.Logf("done: %s", l.counts)
	l.settle("with the snapshots that are left", func(w *snapshotWorld) []string { return w.disorder() })
	for _, name := range l.singles {
		l.deleteSingle(name)
	}
	for _, name := range l.groups {
		l.deleteGroup(name)
	}
	w := l.settle("with all snapshots deleted", func(w *snapshotWorld) []string {
		return append(w.disorder(), w.left(snapshotv1.VolumeSnapshotContentRetain)...)
	})
	kept := len(w.taken)
	for _, content := range w.contents {
		l.Retry("delete content "+content.Name, func(ctx context.Context) error {
			return testbed.IgnoreNotFound(l.api.VolumeSnapshotContents().Delete(ctx, content.Name, metav1.DeleteOptions{}))
		})
	}
	w = l.settle("with all contents deleted", func(w *snapshotWorld) []string {
		left := w.left("")
		if len(w.taken) != kept {
			left = append(left, fmt.Sprintf("%d snapshots in the driver, %d were to stay", len(w.taken), kept))
		}
		return left
	})
	for id := range w.taken {
		l.driver.RemoveSnapshot(id)
	}
	l.settle("with all claims deleted", func(w *snapshotWorld) []string {
		for _, claim := range w.claims {
			if claim.DeletionTimestamp == nil {
				l.DeleteClaim(claim.Name)
			}
		}
		if n := len(w.claims) + len(l.driver.Volumes()); n > 0 {
			return []string{fmt.Sprintf("%d claims, %d volumes in the driver", len(w.claims), len(l.driver.Volumes()))}
		}
		return nil
	})
	for _, violation := range l.driver.Violations() {
		l.found("against the life cycle of CSI: " + violation)
	}
	if gone := l.driver.volumesGone(); len(gone) > 0 {
		l.found(fmt.Sprintf("the driver was taking snapshots of volumes that were deleted: %q", gone))
	}
}

// isOurs reports whether both halves are ours.
func (l *snapshotLeaks) isOurs() bool {
	return !slices.ContainsFunc(l.halves, func(h *half) bool { return h.whose != ours })
}

// found is an error if both halves are ours, else part of the report.
func (l *snapshotLeaks) found(problem string) {
	l.T.Helper()
	if l.isOurs() {
		l.T.Error(problem)
	} else {
		l.T.Logf("REPORT: %s", problem)
	}
}

// settle waits until there is nothing wrong, or as long as something changes.
func (l *snapshotLeaks) settle(what string, judge func(*snapshotWorld) []string) *snapshotWorld {
	l.T.Helper()
	wait := testbed.Patience
	if !l.isOurs() {
		wait = theirPatience
	}
	began, problem := time.Now(), ""
	for changed := time.Now(); ; {
		l.restart()
		begin := time.Now()
		w, err := l.world(l.T.Context())
		var now string
		if err != nil {
			now = err.Error()
		} else {
			now = strings.Join(judge(w), "; ")
		}
		if now == "" {
			l.T.Logf("%s, after %s: nothing wrong; %s", what, time.Since(began).Round(time.Second), w)
			return w
		}
		if now != problem {
			problem, changed = now, time.Now()
		}
		if time.Since(changed) > wait {
			l.found(fmt.Sprintf("%s, after %s: %s; %s", what, time.Since(began).Round(time.Second), problem, w))
			return w
		}
		pause(l.T.Context(), max(testbed.Period, 4*time.Since(begin))) // lists of thousands of objects cost the API server more than the game does
	}
}

// snapshotWorld is all that there is of snapshots in a namespace and in its driver, which is the only one of the cluster that has any.
type snapshotWorld struct {
	claims        []corev1.PersistentVolumeClaim
	snapshots     []snapshotv1.VolumeSnapshot
	contents      []snapshotv1.VolumeSnapshotContent
	groups        []groupv1.VolumeGroupSnapshot
	groupContents []groupv1.VolumeGroupSnapshotContent
	// taken are the snapshots of the driver with the UIDs in their names, takenGroups its group snapshots.
	taken       map[string]string
	takenGroups map[string]string
	// volumes are those of the driver.
	volumes map[string]bool
}

// world reads everything.
func (l *snapshotLeaks) world(ctx context.Context) (*snapshotWorld, error) {
	return readSnapshots(ctx, l.Scene, l.api, l.driver.Driver)
}

// readSnapshots reads everything, the driver first.
func readSnapshots(ctx context.Context, s *testbed.Scene, api snapshotapi.Client, driver *csitest.Driver) (*snapshotWorld, error) {
	w := &snapshotWorld{taken: map[string]string{}, takenGroups: map[string]string{}, volumes: map[string]bool{}}
	for _, v := range driver.Volumes() {
		w.volumes[v.ID] = true
	}
	for _, s := range driver.Snapshots() {
		w.taken[s.ID] = cmp.Or(s.Name, s.Group)
	}
	for _, g := range driver.GroupSnapshots() {
		w.takenGroups[g.ID] = g.Name
	}
	claims, err1 := s.Client.CoreV1().PersistentVolumeClaims(s.Namespace).List(ctx, metav1.ListOptions{})
	snapshots, err2 := api.VolumeSnapshots(s.Namespace).List(ctx, metav1.ListOptions{})
	contents, err3 := api.VolumeSnapshotContents().List(ctx, metav1.ListOptions{})
	groups, err4 := api.VolumeGroupSnapshots(s.Namespace).List(ctx, metav1.ListOptions{})
	groupContents, err5 := api.VolumeGroupSnapshotContents().List(ctx, metav1.ListOptions{})
	if err := cmp.Or(err1, err2, err3, err4, err5); err != nil {
		return w, err
	}
	w.claims, w.snapshots, w.groups, w.contents, w.groupContents = claims.Items, snapshots.Items, groups.Items, contents.Items, groupContents.Items
	return w, nil
}

// String counts the objects and the snapshots of the driver.
func (w *snapshotWorld) String() string {
	return fmt.Sprintf("%d snapshots and %d groups in the driver, %d VolumeSnapshots, %d contents, %d VolumeGroupSnapshots, %d contents of groups, %d claims",
		len(w.taken), len(w.takenGroups), len(w.snapshots), len(w.contents), len(w.groups), len(w.groupContents), len(w.claims))
}

// problems are names by what is wrong with them.
type problems map[string][]string

// list renders them with a few names each.
func (p problems) list() (list []string) {
	for what, names := range p {
		slices.Sort(names)
		list = append(list, fmt.Sprintf("%d %s, such as %q", len(names), what, names[:min(3, len(names))]))
	}
	slices.Sort(list)
	return list
}

// isHopeless reports whether no snapshot can be taken any more: the driver has refused to take one, and a claim that is deleted does not wait
// for such a snapshot.
func (w *snapshotWorld) isHopeless(content snapshotv1.VolumeSnapshotContent) bool {
	volume := content.Spec.Source.VolumeHandle
	return volume != nil && !w.volumes[*volume] && content.Annotations[snapshotapi.AnnBeingCreated] == ""
}

// disorder says what is wrong while snapshots are left.
func (w *snapshotWorld) disorder() []string {
	p := problems{}
	add := func(wrong bool, what, name string) {
		if wrong {
			p[what] = append(p[what], name)
		}
	}
	handles, groupHandles, claims := map[string]bool{}, map[string]bool{}, map[string]bool{}
	for _, c := range w.claims {
		claims[c.Name] = true
		add(c.DeletionTimestamp != nil, "claims Terminating", c.Name)
		add(slices.Contains(c.Finalizers, snapshotapi.FinalizerClaim), "claims with the finalizer of snapshots", c.Name)
	}
	withContent, hopeless := map[types.UID]bool{}, map[types.UID]bool{}
	for _, c := range w.contents {
		handle := ""
		if c.Status != nil && c.Status.SnapshotHandle != nil {
			handle = *c.Status.SnapshotHandle
		}
		withContent[c.Spec.VolumeSnapshotRef.UID] = true
		handles[handle] = true
		add(c.DeletionTimestamp != nil, "contents Terminating", c.Name)
		never := handle == "" && w.isHopeless(c)
		hopeless[c.Spec.VolumeSnapshotRef.UID] = never
		add(handle == "" && !never, "contents without a snapshot", c.Name)
		_, there := w.taken[handle]
		add(handle != "" && !there, "contents of snapshots that the driver does not have", c.Name)
	}
	for _, c := range w.groupContents {
		handle := ""
		if c.Status != nil && c.Status.VolumeGroupSnapshotHandle != nil {
			handle = *c.Status.VolumeGroupSnapshotHandle
		}
		groupHandles[handle] = true
		add(c.DeletionTimestamp != nil, "contents of groups Terminating", c.Name)
		add(handle == "", "contents of groups without a group snapshot", c.Name)
	}
	for _, s := range w.snapshots {
		add(s.DeletionTimestamp != nil, "VolumeSnapshots Terminating", s.Name)
		source := s.Spec.Source.PersistentVolumeClaimName
		lost := source != nil && !claims[*source] && (!withContent[s.UID] || hopeless[s.UID]) // the claim was deleted before
		ready := s.Status != nil && s.Status.ReadyToUse != nil && *s.Status.ReadyToUse
		add(s.DeletionTimestamp == nil && !ready && !lost, "VolumeSnapshots not ready", s.Name)
	}
	for _, g := range w.groups {
		add(g.DeletionTimestamp != nil, "VolumeGroupSnapshots Terminating", g.Name)
		ready := g.Status != nil && g.Status.ReadyToUse != nil && *g.Status.ReadyToUse
		add(g.DeletionTimestamp == nil && !ready, "VolumeGroupSnapshots not ready", g.Name)
	}
	for id := range w.taken {
		add(!handles[id], "snapshots LEAKED in the driver", id)
	}
	for id := range w.takenGroups {
		add(!groupHandles[id], "group snapshots LEAKED in the driver", id)
	}
	return p.list()
}

// left lists the objects that remain although they must not; contents of that policy may remain.
func (w *snapshotWorld) left(policy snapshotv1.DeletionPolicy) []string {
	p := problems{}
	for _, s := range w.snapshots {
		p["VolumeSnapshots"] = append(p["VolumeSnapshots"], s.Name)
	}
	for _, g := range w.groups {
		p["VolumeGroupSnapshots"] = append(p["VolumeGroupSnapshots"], g.Name)
	}
	for _, c := range w.groupContents {
		p["contents of groups"] = append(p["contents of groups"], c.Name)
	}
	for _, c := range w.contents {
		if c.Spec.DeletionPolicy != policy {
			p["contents"] = append(p["contents"], c.Name)
		}
	}
	return p.list()
}

// excerpt returns the lines of the logs about snapshots without a content, and the last lines.
func (l *snapshotLeaks) excerpt() string {
	w, err := l.world(context.Background())
	if err != nil {
		return err.Error()
	}
	known := map[string]bool{}
	for _, c := range w.contents {
		if c.Status != nil && c.Status.SnapshotHandle != nil {
			known[*c.Status.SnapshotHandle] = true
		}
	}
	var b strings.Builder
	for _, h := range l.halves {
		text, _ := os.ReadFile(h.log)
		for line := range strings.Lines(string(text)) {
			for id, name := range w.taken {
				if !known[id] && strings.Contains(line, strings.TrimPrefix(name, "snapshot-")) {
					b.WriteString(line)
				}
			}
		}
		fmt.Fprintf(&b, "== end of the log of %s\n%s\n", h.name, text[max(0, len(text)-10000):])
	}
	return b.String()
}

// forceClear removes what is left, with or without the programs.
func (l *snapshotLeaks) forceClear() {
	ctx, cancel := context.WithTimeout(context.Background(), testbed.Patience)
	defer cancel()
	w, err := l.world(ctx)
	if err != nil {
		l.T.Log(err)
	}
	release, none := []byte(`{"metadata":{"finalizers":null}}`), metav1.DeleteOptions{}
	for _, o := range w.snapshots {
		_ = l.api.VolumeSnapshots(l.Namespace).Delete(ctx, o.Name, none)
		_, _ = l.api.VolumeSnapshots(l.Namespace).Patch(ctx, o.Name, types.MergePatchType, release, metav1.PatchOptions{})
	}
	for _, o := range w.contents {
		_ = l.api.VolumeSnapshotContents().Delete(ctx, o.Name, none)
		_, _ = l.api.VolumeSnapshotContents().Patch(ctx, o.Name, types.MergePatchType, release, metav1.PatchOptions{})
	}
	for _, o := range w.groups {
		_ = l.api.VolumeGroupSnapshots(l.Namespace).Delete(ctx, o.Name, none)
		_, _ = l.api.VolumeGroupSnapshots(l.Namespace).Patch(ctx, o.Name, types.MergePatchType, release, metav1.PatchOptions{})
	}
	for _, o := range w.groupContents {
		_ = l.api.VolumeGroupSnapshotContents().Delete(ctx, o.Name, none)
		_, _ = l.api.VolumeGroupSnapshotContents().Patch(ctx, o.Name, types.MergePatchType, release, metav1.PatchOptions{})
	}
	for _, o := range w.claims {
		_ = l.Client.CoreV1().PersistentVolumeClaims(l.Namespace).Delete(ctx, o.Name, none)
		_, _ = l.Client.CoreV1().PersistentVolumeClaims(l.Namespace).Patch(ctx, o.Name, types.MergePatchType, release, metav1.PatchOptions{})
	}
}
