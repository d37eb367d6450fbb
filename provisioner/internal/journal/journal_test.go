package journal

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"
	"google.golang.org/protobuf/testing/protocmp"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"
	"k8s.io/klog/v2/textlogger"

	"github.com/longshore-csi/longshore/csikit/kube"
	"github.com/longshore-csi/longshore/csikittest/kubetest"
	"github.com/longshore-csi/longshore/provisioner/internal/volume"
)

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m)
}

// quiet returns a context for a test that does not want to see a log.
func quiet(t *testing.T) context.Context {
	t.Helper()
	return klog.NewContext(t.Context(), klog.Logger{})
}

// newIntent returns an intent with all that a record has.
func newIntent(uid string) Intent {
	claim := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "data-" + uid, UID: types.UID(uid)}}
	content := &csi.VolumeContentSource{Type: &csi.VolumeContentSource_Snapshot{Snapshot: &csi.VolumeContentSource_SnapshotSource{SnapshotId: "snap-1"}}}
	intent := Intent{
		Stage: Creating, Spec: volume.Spec{Name: "pvc-" + uid, Claim: claim, Source: &volume.Source{Ref: volume.SourceRef{Kind: "VolumeSnapshot", Namespace: "team", Name: "monday"}, Content: content}},
		Opened: time.Now().Round(0).UTC(), Secrets: Secrets{"password": "hunter2"},
	}
	intent.Spec.Secrets.Provision = &corev1.SecretReference{Namespace: "storage", Name: "login"}
	segment := []*csi.Topology{{Segments: map[string]string{"zone": "a"}}, {Segments: map[string]string{"zone": "b"}}}
	intent.Request = &csi.CreateVolumeRequest{
		Name: "pvc-" + uid, CapacityRange: &csi.CapacityRange{RequiredBytes: 1 << 40}, Parameters: map[string]string{"pool": "fast"}, MutableParameters: map[string]string{"iops": "100"},
		VolumeCapabilities: []*csi.VolumeCapability{{AccessType: &csi.VolumeCapability_Mount{Mount: &csi.VolumeCapability_MountVolume{FsType: "ext4"}}}}, VolumeContentSource: content,
		AccessibilityRequirements: &csi.TopologyRequirement{Requisite: segment, Preferred: segment},
	}
	return intent
}

// bench is a cluster on which processes follow each other.
type bench struct {
	t       *testing.T
	cluster *kubetest.Cluster
	// elected says that there is an election, term is that of the next process, and started counts them.
	elected bool
	term    Term
	started int
	// stops ends the processes that were not stopped when the test is over, and session is that of the last one.
	stops   []func()
	session *kubetest.Session
	// reports has what each process has reported, in order, and adopted what it took over late, which mu guards.
	reports, adopted []string
	mu               sync.Mutex
	// lossy says that the answer to the first write of AnnotationAbandon by the next process is lost.
	lossy bool
	// log gets the log lines; nil: nobody reads them.
	log io.Writer
}

// onBench runs a test in virtual time.
func onBench(t *testing.T, test func(t *testing.T, b *bench)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		b := &bench{t: t, cluster: kubetest.New()}
		test(t, b)
		for _, stop := range b.stops {
			stop()
		}
	})
}

// start starts the next process.
func (b *bench) start() (j *Journal, stop func()) {
	b.t.Helper()
	b.started++
	j = New()
	return j, b.startAgain(j)
}

// startAgain starts the journal of the last process, in the next term.
func (b *bench) startAgain(j *Journal) (stop func()) {
	b.t.Helper()
	return b.startUntil(quiet(b.t), j)
}

// startUntil is startAgain for a leadership that ends with ctx.
func (b *bench) startUntil(ctx context.Context, j *Journal) (stop func()) {
	b.t.Helper()
	if b.elected {
		b.term = Term{Lease: "election", Transitions: b.term.Transitions + 1}
	}
	if b.log != nil {
		ctx = klog.NewContext(ctx, textlogger.NewLogger(textlogger.NewConfig(textlogger.Output(b.log))))
	}
	b.session = b.cluster.NewSession()
	leases := b.session.Client().Leases("storage")
	if b.lossy {
		leases = &lossyLeases{Leases: leases}
	}
	stop = sync.OnceFunc(j.Start(ctx, Config{
		Leases: leases, Name: "driver-journal", Identity: fmt.Sprint("process-", b.started), Labels: map[string]string{"app": "storage"},
		Term: b.term, Settle: time.Hour, Timeout: 30 * time.Second,
		Adopted: func(intents []Intent) {
			b.mu.Lock()
			defer b.mu.Unlock()
			b.adopted = append(b.adopted, names(intents)...)
		},
		Report: func(why error) { b.reports = append(b.reports, fmt.Sprint(why)) },
	}))
	b.stops = append(b.stops, stop)
	return stop
}

// names returns the names of volumes, with the stage of each that is not being created.
func names(intents []Intent) (found []string) {
	for _, i := range intents {
		name := i.Spec.Name
		if i.Stage != Creating {
			name += " " + string(i.Stage)
		}
		found = append(found, name)
	}
	return found
}

// lease returns a Lease, nil if it does not exist.
func (b *bench) lease(name string) *coordinationv1.Lease {
	for _, obj := range b.cluster.Objects("leases") {
		if lease, ok := obj.(*coordinationv1.Lease); ok && lease.Name == name {
			return lease
		}
	}
	return nil
}

// stored returns the document that is stored.
func (b *bench) stored() document {
	b.t.Helper()
	lease := b.lease("driver-journal")
	if lease == nil {
		b.t.Fatal("no Lease is stored")
	}
	d, err := decode(lease.Annotations[Annotation])
	if err != nil {
		b.t.Fatal(err)
	}
	return d
}

// edit changes the Lease, as an administrator does.
func (b *bench) edit(change func(*coordinationv1.Lease)) {
	b.t.Helper()
	lease := b.lease("driver-journal")
	change(lease)
	b.apply(lease)
}

// rewrite changes the document that is stored.
func (b *bench) rewrite(change func(d *document)) {
	b.t.Helper()
	d, records := b.stored(), map[types.UID]record{}
	change(&d)
	for _, r := range d.Records {
		records[r.UID] = r
	}
	text, err := encode(d, records)
	if err != nil {
		b.t.Fatal(err)
	}
	b.edit(func(lease *coordinationv1.Lease) { lease.Annotations[Annotation] = text })
}

// apply stores an object.
func (b *bench) apply(obj kube.Object) {
	b.t.Helper()
	if err := b.cluster.Apply(obj); err != nil {
		b.t.Fatal(err)
	}
}

// open opens intents that must be accepted.
func (b *bench) open(j *Journal, uids ...string) {
	b.t.Helper()
	for _, uid := range uids {
		if err := j.Open(quiet(b.t), newIntent(uid)); err != nil {
			b.t.Fatal(err)
		}
	}
}

// TestRecord has the next process read what one has stored before Open returned: all of the request, and no secret.
func TestRecord(t *testing.T) {
	onBench(t, func(t *testing.T, b *bench) {
		j, _ := b.start()
		b.open(j, "u1")
		b.session.Cut()
		raw, err := json.Marshal(b.stored())
		if err != nil || strings.Contains(string(raw), "hunter2") || !j.Durable() {
			t.Errorf("the record is %s, durable %v: it must have no secret, and be stored", raw, j.Durable())
		}
		next, stop := b.start()
		defer stop()
		want, got := newIntent("u1"), next.List()
		if len(got) != 1 {
			t.Fatalf("intents %q of the next process, want one", names(got))
		}
		i := got[0]
		if diff := cmp.Diff(want.Request, i.Request, protocmp.Transform()); diff != "" {
			t.Errorf("request (-want +got):\n%s", diff)
		}
		if i.UID() != "u1" || i.Spec.Name != "pvc-u1" || i.Spec.Claim.Namespace != "team" || i.Spec.Claim.Name != "data-u1" || *i.Spec.Secrets.Provision != *want.Spec.Secrets.Provision ||
			i.Spec.Source.Ref != want.Spec.Source.Ref || !i.Opened.Equal(want.Opened) || !i.Recovered || !i.Unknown() || !i.Settles.Equal(time.Now().Add(time.Hour)) {
			t.Errorf("intent %+v, want that of the record, whose outcome is unknown", i)
		}
		if lease := b.lease("driver-journal"); lease.Labels["app"] != "storage" || *lease.Spec.HolderIdentity != "process-2" {
			t.Errorf("Lease %+v, want that of the second process", lease)
		}
	})
}

// TestWritesAreShared opens and closes many intents at once: they share a few writes, and the last one leaves no record.
func TestWritesAreShared(t *testing.T) {
	onBench(t, func(t *testing.T, b *bench) {
		j, stop := b.start()
		b.cluster.SetLatency("leases", 5*time.Millisecond)
		b.cluster.ResetWrites()
		for n := range 1000 {
			go func() {
				b.open(j, fmt.Sprint("u", n))
				j.Close(types.UID(fmt.Sprint("u", n)))
			}()
		}
		time.Sleep(10 * time.Second)
		if writes := len(b.cluster.Writes()); writes > 4 || len(b.stored().Records) != 0 {
			t.Errorf("%d writes for 1000 volumes, and %d records in the end, want at most 4, and none", writes, len(b.stored().Records))
		}
		stop()
	})
}

// TestTrust has a process find the record of another one, which it may act on only if that was its direct predecessor, and at work a short time ago.
func TestTrust(t *testing.T) {
	transitions := func(n int32) func(b *bench) {
		return func(b *bench) { b.term.Transitions += n }
	}
	written := func(age time.Duration) func(b *bench) {
		return func(b *bench) { b.rewrite(func(d *document) { d.Written = time.Now().Add(-age) }) }
	}
	cases := map[string]struct {
		reason  string
		alone   bool
		between func(b *bench)
		trusted bool
	}{
		"Direct":          {reason: "Nobody was in between.", trusted: true},
		"Alone":           {reason: "Nobody is known to have been in between.", alone: true, trusted: true},
		"Between":         {reason: "kubernetes-csi's sidecar has led.", between: transitions(1)},
		"SamePod":         {reason: "The container was restarted, and is the same holder.", between: transitions(-1), trusted: true},
		"Before":          {reason: "The election's Lease was restored from a backup.", between: transitions(-2)},
		"OtherElection":   {reason: "The election's Lease was made again.", between: func(b *bench) { b.rewrite(func(d *document) { d.Lease = "other" }) }},
		"ElectionBegun":   {reason: "There was no election before.", between: func(b *bench) { b.rewrite(func(d *document) { d.Term = Term{} }) }},
		"ElectionEnded":   {reason: "There was an election before.", alone: true, between: func(b *bench) { b.rewrite(func(d *document) { d.Term = Term{Lease: "election"} }) }},
		"Recent":          {reason: "It ended 59 minutes ago.", between: written(59 * time.Minute), trusted: true},
		"Old":             {reason: "It ended more than an hour ago.", between: written(61 * time.Minute)},
		"AloneOld":        {reason: "It ended more than an hour ago.", alone: true, between: written(61 * time.Minute)},
		"ClockAhead":      {reason: "Its clock was ahead a little.", between: written(-4 * time.Minute), trusted: true},
		"Future":          {reason: "A clock has jumped.", between: written(-6 * time.Minute)},
		"NoTime":          {reason: "The time was removed by hand.", between: func(b *bench) { b.rewrite(func(d *document) { d.Written = time.Time{} }) }},
		"ReportedBefore":  {reason: "What was reported stays so.", between: func(b *bench) { b.rewrite(func(d *document) { d.Records[0].Reported = "why" }) }},
		"RequestIsBroken": {reason: "It cannot be repeated.", between: func(b *bench) { b.rewrite(func(d *document) { d.Records[0].Request = json.RawMessage(`{"name":1}`) }) }},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			onBench(t, func(t *testing.T, b *bench) {
				b.elected = !tc.alone
				j, _ := b.start()
				b.open(j, "u1")
				b.session.Cut()
				if tc.between != nil {
					tc.between(b)
				}
				for _, life := range []string{"the next process", "the one after that"} {
					next, stop := b.start()
					want := []string{"pvc-u1"}
					if !tc.trusted {
						want = []string{"pvc-u1 reported"}
					}
					got := next.List()
					if diff := cmp.Diff(want, names(got)); diff != "" || (got[0].Reason == "") != tc.trusted {
						t.Errorf("%s\nintents of %s, because of %q (-want +got):\n%s", tc.reason, life, got[0].Reason, diff)
					}
					stop()
				}
			})
		})
	}
}

// refusals are answers of an API server by which it does not take a record.
func refusals() map[string]error {
	leases := schema.GroupResource{Group: "coordination.k8s.io", Resource: "leases"}
	webhook := func(code int32, reason metav1.StatusReason) error {
		return &apierrors.StatusError{ErrStatus: metav1.Status{Status: metav1.StatusFailure, Code: code, Reason: reason, Message: `admission webhook "policy.example.com" denied the request`}}
	}
	return map[string]error{
		"Forbidden": apierrors.NewForbidden(leases, "driver-journal", errors.New("no")), "Webhook400": webhook(http.StatusBadRequest, ""), "Webhook422": webhook(http.StatusUnprocessableEntity, metav1.StatusReasonInvalid),
		"Webhook500": webhook(http.StatusInternalServerError, metav1.StatusReasonInternalError), "Quota": webhook(http.StatusForbidden, metav1.StatusReasonForbidden),
	}
}

// TestRefused has the API server refuse records for longer than an hour, from the start or later: volumes are made all the same, this is reported once, and the records are stored
// as soon as that is possible.
func TestRefused(t *testing.T) {
	for name, err := range refusals() {
		for _, verb := range []string{"get", "create", "update"} {
			t.Run(name+verb, func(t *testing.T) {
				onBench(t, func(t *testing.T, b *bench) {
					b.elected = true
					first, _ := b.start()
					b.open(first, "u0")
					b.session.Cut()
					if verb == "create" {
						if err := b.cluster.Drop("leases", "storage", "driver-journal"); err != nil {
							t.Fatal(err)
						}
					}
					b.cluster.Fail(verb, "leases", err, 0)
					j, stop := b.start()
					defer stop()
					b.open(j, "u1")
					time.Sleep(trustedAge + 10*time.Minute)
					b.open(j, "u2")
					if j.Durable() || len(b.reports) != 1 || !strings.Contains(b.reports[0], "Lease") {
						t.Errorf("durable %v, reports %q, want one that names the Lease", j.Durable(), b.reports)
					}
					b.cluster.Heal()
					time.Sleep(2 * time.Minute)
					if !j.Durable() || len(b.reports) != 1 {
						t.Errorf("durable %v, reports %q, want no other", j.Durable(), b.reports)
					}
					if got := len(b.stored().Records); got != 2 && verb == "create" || got != 3 && verb != "create" {
						t.Errorf("%d records after the refusals, intents %q", got, names(j.List()))
					}
					if verb != "create" { // the time is over in which the record could be acted on
						if diff := cmp.Diff([]string{"pvc-u0 reported"}, b.adopted); diff != "" {
							t.Errorf("taken over late (-want +got):\n%s", diff)
						}
					}
				})
			})
		}
	}
}

// TestRefusedOnce has one write refused while volumes are in progress: the next one stores their records again.
func TestRefusedOnce(t *testing.T) {
	for name, err := range refusals() {
		t.Run(name, func(t *testing.T) {
			onBench(t, func(t *testing.T, b *bench) {
				j, stop := b.start()
				defer stop()
				b.open(j, "u1")
				b.cluster.Fail("update", "leases", err, 1)
				b.open(j, "u2")
				time.Sleep(heartbeat + time.Second)
				if got := len(b.stored().Records); got != 2 || !j.Durable() {
					t.Errorf("%d records a minute after one refusal, durable %v", got, j.Durable())
				}
			})
		})
	}
}

// TestAway has an API server that does not answer: nothing is asked of the driver, for nothing could be saved either, and the start waits.
func TestAway(t *testing.T) {
	onBench(t, func(t *testing.T, b *bench) {
		j, stop := b.start()
		b.cluster.Fail("", "leases", errors.New("connection refused"), 0)
		if err := j.Open(quiet(t), newIntent("u1")); err == nil || len(j.List()) != 0 {
			t.Errorf("error %v, intents %q: want an error, and no intent", err, names(j.List()))
		}
		time.AfterFunc(time.Minute, b.cluster.Heal)
		stop()
		began := time.Now()
		_, stop = b.start()
		defer stop()
		if waited := time.Since(began); waited < 30*time.Second || len(b.reports) != 0 {
			t.Errorf("the start took %v, reports %q: want to wait for the API server", waited, b.reports)
		}
	})
}

// TestSuperseded has another process take over the Lease. A leader makes no further call; an instance without an election cannot know who is right.
func TestSuperseded(t *testing.T) {
	for _, elected := range []bool{true, false} {
		t.Run(fmt.Sprint("Elected", elected), func(t *testing.T) {
			onBench(t, func(t *testing.T, b *bench) {
				b.elected = elected
				j, stop := b.start()
				defer stop()
				next, stopNext := b.start()
				defer stopNext()
				err := j.Open(quiet(t), newIntent("u1"))
				if errors.Is(err, ErrSuperseded) != elected || (err != nil) != elected || j.Durable() {
					t.Errorf("error %v, durable %v", err, j.Durable())
				}
				b.open(next, "u2")
				if d := b.stored(); len(d.Records) != 1 || d.Records[0].UID != "u2" || !next.Durable() {
					t.Errorf("records %+v, want that of the process which has the Lease", d.Records)
				}
			})
		})
	}
}

// report leaves a volume to an administrator.
func (b *bench) report(j *Journal, uid types.UID) {
	b.t.Helper()
	intent, _ := j.Get(uid)
	intent.Stage, intent.Reason = Reported, "nobody knows"
	if err := j.Update(intent); err != nil {
		b.t.Fatal(err)
	}
}

// TestStartedAgain has a process lose the leadership, and lead again, although its records could not be stored: what it remembers counts as long as no other has led.
func TestStartedAgain(t *testing.T) {
	for name, tt := range map[string]struct {
		reason string
		others int32
		want   []string
	}{
		"AtOnce":       {reason: "No one else has led.", want: []string{"pvc-u1", "pvc-u2"}},
		"AfterAnother": {reason: "The other leader may have gone on with what was stored.", others: 1, want: []string{"pvc-u2"}},
	} {
		t.Run(name, func(t *testing.T) {
			onBench(t, func(t *testing.T, b *bench) {
				b.elected = true
				j, stop := b.start()
				b.cluster.Fail("update", "leases", apierrors.NewForbidden(coordinationv1.Resource("leases"), "driver-journal", errors.New("no")), 0)
				if err := j.Open(t.Context(), newIntent("u1")); err != nil {
					t.Fatal(err)
				}
				stop()
				b.term.Transitions += tt.others
				stop = b.startAgain(j)
				if err := j.Open(t.Context(), newIntent("u2")); err != nil {
					t.Fatal(err)
				}
				if diff := cmp.Diff(tt.want, names(j.List())); diff != "" {
					t.Errorf("%s The journal has (-want +got):\n%s", tt.reason, diff)
				}
				b.cluster.Heal()
				j.Close("u2")
				time.Sleep(2 * heartbeat)
				if stored := len(b.stored().Records); stored != len(tt.want)-1 {
					t.Errorf("%s %d records are stored when the API server takes them, want %d", tt.reason, stored, len(tt.want)-1)
				}
				stop()
			})
		})
	}
}

// TestPassedTerm has a process be elected for too short a time to take over the records, and another one lead in its place: what the first remembers from before does not count.
func TestPassedTerm(t *testing.T) {
	onBench(t, func(t *testing.T, b *bench) {
		b.elected = true
		first, stop := b.start()
		b.open(first, "u1")
		stop()
		ended, cancel := context.WithCancel(quiet(t))
		cancel()
		stop = b.startUntil(ended, first)
		if first.Durable() {
			t.Error("the records were taken over, although the leadership has ended")
		}
		stop()
		b.term.Transitions-- // the Lease was given back unused
		b.started++
		other := New()
		stop = b.startAgain(other)
		if diff := cmp.Diff([]string{"pvc-u1"}, names(other.List())); diff != "" {
			t.Errorf("the other process goes on with (-want +got):\n%s", diff)
		}
		other.Close("u1")
		stop()
		stop = b.startAgain(first)
		if got := first.List(); len(got) != 0 {
			t.Errorf("the first process goes on with %q, which the other one has settled", names(got))
		}
		stop()
	})
}

// TestHeartbeat looks at what is written while nothing happens: with a volume in progress, that the process is at work; without one, nothing.
func TestHeartbeat(t *testing.T) {
	onBench(t, func(t *testing.T, b *bench) {
		j, stop := b.start()
		defer stop()
		b.open(j, "u1")
		for range 10 {
			time.Sleep(10 * time.Minute)
			if age := time.Since(b.stored().Written); age > heartbeat {
				t.Errorf("written %v ago", age)
			}
		}
		b.open(j, "u2")
		b.report(j, "u2")
		j.Close("u1")
		time.Sleep(lazyWrite + time.Second)
		b.cluster.ResetWrites()
		time.Sleep(24 * time.Hour)
		if n := len(b.cluster.Writes()); n != 0 {
			t.Errorf("%d writes of a day without a volume that is worked on", n)
		}
	})
}

// TestAbandonReported has an administrator confirm that a volume which was left is dealt with.
func TestAbandonReported(t *testing.T) {
	onBench(t, func(t *testing.T, b *bench) {
		j, stop := b.start()
		defer stop()
		b.open(j, "u1")
		b.report(j, "u1")
		time.Sleep(time.Hour)
		b.edit(func(lease *coordinationv1.Lease) { lease.Annotations[AnnotationAbandon] = "u1" })
		time.Sleep(heartbeat + time.Second)
		if len(j.List()) != 0 || len(b.stored().Records) != 0 {
			t.Errorf("intents %q, records %+v, want none", names(j.List()), b.stored().Records)
		}
	})
}

// TestAbandon has an administrator end the work on two volumes, while the process runs and before it starts.
func TestAbandon(t *testing.T) {
	for name, next := range map[string]func(b *bench, j *Journal, stop func()) (*Journal, func()){
		"Running": func(_ *bench, j *Journal, stop func()) (*Journal, func()) { return j, stop },
		"Killed": func(b *bench, _ *Journal, _ func()) (*Journal, func()) {
			b.session.Cut()
			return b.start()
		},
		"SameProcess": func(b *bench, j *Journal, _ func()) (*Journal, func()) { return j, b.startAgain(j) }, // as after the driver was away
	} {
		t.Run(name, func(t *testing.T) {
			onBench(t, func(t *testing.T, b *bench) {
				j, stop := b.start()
				for _, uid := range []string{"u1", "u2", "u3"} {
					b.open(j, uid)
				}
				if name == "SameProcess" {
					stop()
				}
				b.edit(func(lease *coordinationv1.Lease) { lease.Annotations[AnnotationAbandon] = "u1, u3,other" })
				j, stop = next(b, j, stop)
				time.Sleep(heartbeat + time.Second)
				if diff := cmp.Diff([]string{"pvc-u2"}, names(j.List())); diff != "" {
					t.Errorf("intents (-want +got):\n%s", diff)
				}
				if _, ok := b.lease("driver-journal").Annotations[AnnotationAbandon]; ok || len(b.stored().Records) != 1 {
					t.Errorf("annotation is still there: %v, records %+v", ok, b.stored().Records)
				}
				stop()
			})
		})
	}
}

// TestUnreadable has content that this version cannot read: it is kept, and the journal works.
func TestUnreadable(t *testing.T) {
	other, err := encode(document{}, nil)
	if err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{"Text": "?", "Base64": "aGVsbG8=", "Short": other[:len(other)/2]} {
		t.Run(name, func(t *testing.T) {
			onBench(t, func(t *testing.T, b *bench) {
				b.apply(&coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: "storage", Name: "driver-journal", Annotations: map[string]string{Annotation: text}}})
				j, stop := b.start()
				b.open(j, "u1")
				if got := b.lease("driver-journal").Annotations[AnnotationUnread]; got != text || len(b.stored().Records) != 1 {
					t.Errorf("kept %q, want %q; records %+v", got, text, b.stored().Records)
				}
				stop()
			})
		})
	}
}

// TestFull has more in progress than a Lease holds: volumes are made all the same, and recorded again when there is room.
func TestFull(t *testing.T) {
	onBench(t, func(t *testing.T, b *bench) {
		j, stop := b.start()
		defer stop()
		large := newIntent("large")
		for n := range 20000 {
			large.Request.Parameters[fmt.Sprint("key", n)] = fmt.Sprintf("%x", n*n*7919)
		}
		if err := j.Open(quiet(t), large); err != nil || j.Durable() || !strings.Contains(fmt.Sprint(b.reports), "larger than") {
			t.Errorf("error %v, durable %v, reports %q", err, j.Durable(), b.reports)
		}
		b.open(j, "u1")
		j.Close("large")
		time.Sleep(10 * time.Second)
		if !j.Durable() || len(b.stored().Records) != 1 || len(b.cluster.Objects("leases")) != 1 {
			t.Errorf("durable %v, records %+v, %d Leases", j.Durable(), b.stored().Records, len(b.cluster.Objects("leases")))
		}
	})
}

// TestCapacity stores the records of 1,000 claims of one class, whose requests are much alike.
func TestCapacity(t *testing.T) {
	records := map[types.UID]record{}
	for n := range 1000 {
		r, err := recordOf(newIntent(fmt.Sprintf("6f1b2c3d-0000-4000-8000-%012d", n*n)))
		if err != nil {
			t.Fatal(err)
		}
		records[r.UID] = r
	}
	text, err := encode(document{}, records)
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%d bytes", len(text))
	if d, err := decode(text); err != nil || len(d.Records) != 1000 {
		t.Errorf("%d records, error %v", len(d.Records), err)
	}
}

// TestUpdate changes intents, and one that was never opened.
func TestUpdate(t *testing.T) {
	onBench(t, func(t *testing.T, b *bench) {
		j, stop := b.start()
		b.open(j, "u1")
		intent, _ := j.Get("u1")
		intent.Stage, intent.VolumeID = Saving, "vol-1"
		if err := j.Update(intent); err != nil || names(j.List())[0] != "pvc-u1 saving" {
			t.Errorf("error %v, intents %q", err, names(j.List()))
		}
		if err := j.Update(newIntent("u2")); err == nil || !strings.Contains(err.Error(), "not open") {
			t.Errorf("error %v, want one that says that it is not open", err)
		}
		b.report(j, "u1")
		stop()
		if r := b.stored().Records; len(r) != 1 || r[0].Reported != "nobody knows" {
			t.Errorf("records %+v, want one that is not acted on", r)
		}
	})
}

// TestSecretsAreHidden prints an intent in the ways that loggers do.
func TestSecretsAreHidden(t *testing.T) {
	text, err := json.Marshal(newIntent("u1"))
	if all := fmt.Sprintf("%v %+v %s %v", newIntent("u1"), newIntent("u1"), text, err); strings.Contains(all, "hunter2") {
		t.Error(all)
	}
}

// FuzzDecode reads what anybody may have written into the annotation.
func FuzzDecode(f *testing.F) {
	r, err := recordOf(newIntent("u1"))
	if err != nil {
		f.Fatal(err)
	}
	text, err := encode(document{Written: time.Unix(1, 0)}, map[types.UID]record{"u1": r})
	if err != nil {
		f.Fatal(err)
	}
	f.Add(text)
	f.Add("")
	f.Add("H4sIAAAAAAAA/wEAAP//AAAAAAAAAAA=")
	f.Fuzz(func(_ *testing.T, text string) {
		d, err := decode(text)
		if err != nil {
			return
		}
		d.distrust(Term{}, time.Now())
		for _, r := range d.Records {
			_ = r.intent().UID()
		}
	})
}
