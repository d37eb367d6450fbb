package pods

import (
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/longshore-csi/longshore/kubeletplugin/volume"
)

// entry is what is remembered about a pod. Its fields are used by one worker at a time, except pod
// and gone, which belong to the table's lock.
type entry struct {
	pod  *corev1.Pod
	gone bool
	// adopted is true if Adopt was called since the last look at the pod. It belongs to the table's lock, too.
	adopted bool

	// wanted are the volumes of the pod once all of them are resolved, as of a generation of the
	// CSIDriver objects.
	wanted     []volume.Publication
	generation int64
	// running is true once the pod was reported as running by this process.
	running bool
	// ended and deleted are true once the API has taken the final status and the deletion; the watch
	// may bring them later.
	ended, deleted bool
	// finished is true, too, if the pod is not deleted: it was rejected, or has completed.
	finished bool
	// volumes are those that the pod had, until they are unstaged.
	volumes []string
	// since is when the pod began to wait for its volumes; zero if it does not.
	since time.Time
	// lastEvent is since, or the time of the last event that the pod still waits.
	lastEvent time.Time
	// health is the list that was last written to the status of the pod, or that the status had before.
	health []corev1.PodVolumeHealth
	// unsupported has the features and volumes that were reported.
	unsupported map[[2]string]bool
}

// table has all pods by UID: a pod of the same name that is made later is another pod.
type table struct {
	mu      sync.Mutex
	entries map[types.UID]*entry
}

// put notes the newest state of a pod. The pod must be complete; call markGone for a pod of which only the UID is known.
func (t *table) put(pod *corev1.Pod) {
	t.mu.Lock()
	defer t.mu.Unlock()
	e := t.entries[pod.UID]
	if e == nil {
		e = &entry{}
		t.entries[pod.UID] = e
	}
	if !e.gone {
		e.pod = pod
	}
}

// markGone notes that a pod is not in the API any more.
func (t *table) markGone(pod *corev1.Pod) {
	t.mu.Lock()
	defer t.mu.Unlock()
	e := t.entries[pod.UID]
	if e == nil {
		e = &entry{pod: pod}
		t.entries[pod.UID] = e
	}
	e.gone = true
}

// adopt notes that a pod was found on disk: one that is not known is gone.
func (t *table) adopt(uid types.UID) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if e := t.entries[uid]; e != nil {
		e.adopted = true
		return
	}
	t.entries[uid] = &entry{pod: &corev1.Pod{ObjectMeta: metav1.ObjectMeta{UID: uid}}, gone: true}
}

// get returns the entry with the state of the pod at this moment.
func (t *table) get(uid types.UID) (e *entry, pod *corev1.Pod, gone bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	e = t.entries[uid]
	if e == nil {
		return nil, nil, false
	}
	e.adopted = false
	return e, e.pod, e.gone
}

// remove forgets a pod, unless it was adopted since the last look at it: it may have got a volume, and is queued.
func (t *table) remove(uid types.UID) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if e := t.entries[uid]; e != nil && !e.adopted {
		delete(t.entries, uid)
	}
}

func (t *table) uids() []types.UID {
	t.mu.Lock()
	defer t.mu.Unlock()
	all := make([]types.UID, 0, len(t.entries))
	for uid := range t.entries {
		all = append(all, uid)
	}
	return all
}
