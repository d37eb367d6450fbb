package healthmonitor

import (
	"context"
	"encoding/json"
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"github.com/longshore-csi/longshore/csikit/kube"
	"github.com/longshore-csi/longshore/csikit/sidecar"
	"github.com/longshore-csi/longshore/csikittest/csitest"
	"github.com/longshore-csi/longshore/csikittest/kubetest"
	"github.com/longshore-csi/longshore/csikittest/sidecartest"
)

const driverName = "test.csi.longshore.example"

const (
	getHealth  = csi.ControllerServiceCapability_RPC_GET_VOLUME_HEALTH
	listHealth = csi.ControllerServiceCapability_RPC_LIST_VOLUME_HEALTH
	getVolume  = csi.ControllerServiceCapability_RPC_GET_VOLUME
	list       = csi.ControllerServiceCapability_RPC_LIST_VOLUMES
	condition  = csitest.ConditionCapability
)

// inMemory configures a health monitor for an API server in memory.
func inMemory(o Options, client kube.Client, host string) sidecar.Config {
	config := o.sidecar()
	config.Client, config.Host = client, host
	return config
}

// testPV returns the volume that claim name is bound to.
func testPV(name string) *corev1.PersistentVolume {
	return &corev1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: "pv-" + name},
		Spec: corev1.PersistentVolumeSpec{
			ClaimRef:               &corev1.ObjectReference{Namespace: "default", Name: name, UID: types.UID("uid-" + name)},
			PersistentVolumeSource: corev1.PersistentVolumeSource{CSI: &corev1.CSIPersistentVolumeSource{Driver: driverName, VolumeHandle: "vol-" + name}},
		},
		Status: corev1.PersistentVolumeStatus{Phase: corev1.VolumeBound},
	}
}

func testClaim(name string) *corev1.PersistentVolumeClaim {
	return &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, UID: types.UID("uid-" + name)},
		Spec:       corev1.PersistentVolumeClaimSpec{VolumeName: "pv-" + name},
		Status:     corev1.PersistentVolumeClaimStatus{Phase: corev1.ClaimBound},
	}
}

// testPod returns a pod that uses claim name.
func testPod(name, claim, node string) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, UID: types.UID("uid-" + name)},
		Spec: corev1.PodSpec{NodeName: node, Volumes: []corev1.Volume{{Name: "data", VolumeSource: corev1.VolumeSource{
			PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: claim},
		}}}},
		Status: corev1.PodStatus{Phase: corev1.PodRunning},
	}
}

// newDriver returns a driver that announces these capabilities, and has the volumes of some claims.
func newDriver(capabilities []csi.ControllerServiceCapability_RPC_Type, claims ...string) *csitest.Driver {
	d := csitest.New(csitest.Options{Name: driverName, Controller: capabilities})
	for _, name := range claims {
		d.AddVolume(csitest.Volume{ID: "vol-" + name, Capacity: 1 << 30})
	}
	return d
}

// problem is an adverse condition.
func problem(category csi.VolumeHealthErrorType, reason string) *csitest.Problem {
	return &csitest.Problem{Status: category, Reason: reason, Message: "one of two paths is down"}
}

// bed is a cluster and a driver for components in virtual time.
type bed struct {
	t       *testing.T
	cluster *kubetest.Cluster
	driver  *csitest.Driver
}

// newBed has a driver with these capabilities, and claims with their volumes.
func newBed(t *testing.T, capabilities []csi.ControllerServiceCapability_RPC_Type, claims ...string) *bed {
	t.Helper()
	b := &bed{t: t, cluster: kubetest.New(), driver: newDriver(capabilities, claims...)}
	for _, name := range claims {
		if err := b.cluster.Apply(testPV(name), testClaim(name)); err != nil {
			t.Fatal(err)
		}
	}
	return b
}

// launch begins a component; stop ends it in good order.
func (b *bed) launch(ctx context.Context, host string, args ...string) (stop func()) {
	b.t.Helper()
	o, err := parse(args...)
	if err != nil {
		b.t.Fatal(err)
	}
	config := inMemory(o, b.cluster.Client(), host)
	config.CSI.Conn = b.driver.Conn()
	ctx, cancel := context.WithCancel(ctx)
	ended := make(chan error, 1)
	go func() { ended <- sidecar.Run(ctx, config) }()
	return func() {
		b.t.Helper()
		cancel()
		if err := <-ended; err != nil {
			b.t.Error(err)
		}
	}
}

// quiet is a context without a log.
func quiet() context.Context { return klog.NewContext(context.Background(), klog.Logger{}) }

// pass lets virtual time pass.
func pass(d time.Duration) { <-time.After(d) }

// events counts the events of a reason.
func (b *bed) events(reason string) (count int) {
	for _, object := range b.cluster.Objects("events") {
		if event, ok := object.(*corev1.Event); ok && event.Reason == reason {
			count++
		}
	}
	return count
}

// calls counts the calls of a method so far.
func (b *bed) calls(method string) (count int) {
	for _, call := range b.driver.Calls() {
		if call.Method == method {
			count++
		}
	}
	return count
}

// claim returns a claim as the API server has it.
func (b *bed) claim(name string) *corev1.PersistentVolumeClaim {
	b.t.Helper()
	for _, object := range b.cluster.Objects("persistentvolumeclaims") {
		if claim, ok := object.(*corev1.PersistentVolumeClaim); ok && claim.Name == name {
			return claim
		}
	}
	b.t.Fatalf("there is no claim %s", name)
	return nil
}

// TestHTTP monitors a volume over a real socket, and compares what is served with docs/metrics.md.
func TestHTTP(t *testing.T) {
	s := filepath.Join(t.TempDir(), "s")
	driver := newDriver([]csi.ControllerServiceCapability_RPC_Type{getHealth, listHealth}, "data", "lost")
	driver.SetHealth("vol-data", problem(csi.VolumeHealthErrorType_DEGRADED, "PathLost"), problem(99, "New"))
	driver.ServeAt(t, s)
	o, err := parse("--csi-address="+s, "--leader-election", "--leader-election-namespace=ns", "--list-volumes-interval=10ms", "--max-calls-per-second=100")
	if err != nil {
		t.Fatal(err)
	}
	cluster := kubetest.New()
	if err := cluster.Apply(testPV("data"), testClaim("data")); err != nil {
		t.Fatal(err)
	}
	r := sidecartest.Start(t, inMemory(o, cluster.Client(), "host-1"))
	r.Serves(
		`csi_sidecar_operations_seconds_count{driver_name="test.csi.longshore.example",grpc_status_code="OK",method_name="/csi.v1.Controller/ControllerListVolumeHealth"}`,
		`csi_volume_health_probe_total{method="ControllerListVolumeHealth",result="success"}`,
		`csi_volume_health_probe_duration_seconds_count{method="ControllerListVolumeHealth"}`,
		`csi_controller_volume_health_status{namespace="default",persistentvolumeclaim="data",status="Degraded"} 1`,
		`csi_volume_health_unknown_condition_total{status="99"}`,
		`csi_volume_health_status_writes_dropped_total 0`,
		`csi_volume_health_sweep_duration_seconds`,
		`leader_election_master_status{name="external-health-monitor-leader-test-csi-longshore-example"} 1`,
	)
	var state struct {
		Leading bool
		Volumes struct {
			Driver   string
			Problems []struct{ Claim, Volume, Health string }
		}
	}
	_, body := r.Get("/debug/state")
	if err := json.Unmarshal([]byte(body), &state); err != nil || !state.Leading || state.Volumes.Driver != driverName || len(state.Volumes.Problems) != 1 ||
		state.Volumes.Problems[0].Claim != "default/data" || state.Volumes.Problems[0].Health != "Degraded (PathLost): one of two paths is down" {
		t.Errorf("/debug/state: %s", body)
	}
	if code, body := r.Get("/readyz"); code != 200 {
		t.Errorf("/readyz: %d %s", code, body)
	}
	r.CheckMetrics("docs/metrics.md")

	driver.SetHealth("vol-data")
	r.Eventually("drop the status of a volume that is healthy again", func() bool {
		_, body := r.Get("/metrics")
		return !strings.Contains(body, "csi_controller_volume_health_status{")
	})
	r.Stop()
}

// TestIncapableDriver ends with an error when the driver has answered that it does not report health. A driver that does not answer, or half, is waited for.
func TestIncapableDriver(t *testing.T) {
	for name, capabilities := range map[string][]csi.ControllerServiceCapability_RPC_Type{
		"Nothing":           {},
		"ConditionAlone":    {condition},
		"ListAlone":         {list, getVolume},
		"ListHealthWithout": {listHealth}, // CSI v1.13 demands GET_VOLUME_HEALTH, too
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := newBed(t, capabilities)
				b.driver.Inject(csitest.Fault{Method: "ControllerGetCapabilities", Code: codes.Unavailable, Times: 3})
				o, err := parse()
				if err != nil {
					t.Fatal(err)
				}
				config := inMemory(o, b.cluster.Client(), "host-1")
				config.CSI.Conn = b.driver.Conn()
				start := time.Now()
				err = sidecar.Run(quiet(), config)
				if err == nil || !strings.Contains(err.Error(), "does not report the health of volumes: it announces neither GET_VOLUME_HEALTH") {
					t.Errorf("got %v", err)
				}
				if time.Since(start) < 2*time.Second {
					t.Errorf("it ended after %v, before the driver had answered", time.Since(start))
				}
			})
		})
	}
}

// names returns n names of claims.
func names(n int) []string {
	all := make([]string, n)
	for i := range all {
		all[i] = fmt.Sprintf("c%05d", i)
	}
	return all
}

// TestBudget reads 10,000 volumes of a driver without a list: never more than the budget of calls in a minute, the first one included, no burst, and every volume once
// before any is read again. An abnormal volume is reported within the sweep.
func TestBudget(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const volumes, perSecond = 10_000, 20
		b := newBed(t, []csi.ControllerServiceCapability_RPC_Type{getHealth}, names(volumes)...)
		b.driver.SetHealth("vol-c07777", problem(csi.VolumeHealthErrorType_DATA_LOSS, "Scrub"))
		stop := b.launch(quiet(), "host-1", fmt.Sprintf("--max-calls-per-second=%d", perSecond))
		before := 0
		for minute := 1; minute*60*perSecond <= volumes; minute++ {
			pass(time.Second)
			if now := b.calls("ControllerGetVolumeHealth"); now-before > perSecond+1 {
				t.Errorf("%d calls in the first second of minute %d, want at most %d", now-before, minute, perSecond+1)
			}
			pass(59 * time.Second)
			now := b.calls("ControllerGetVolumeHealth")
			if got := now - before; got > 60*perSecond+1 || got < 60*perSecond-5 {
				t.Errorf("%d calls in minute %d, want %d", got, minute, 60*perSecond)
			}
			before = now
		}
		pass(time.Minute)
		seen := map[string]int{}
		for _, call := range b.driver.Calls() {
			if request, ok := call.Request.(*csi.ControllerGetVolumeHealthRequest); ok {
				seen[request.GetVolumeId()]++
			}
		}
		if len(seen) != volumes {
			t.Errorf("%d volumes were read, want %d", len(seen), volumes)
		}
		if got := b.claim("c07777").Status.HealthStatus; got == nil || b.events("VolumeConditionAbnormal") != 1 {
			t.Errorf("after one sweep: status %v and %d events, want one", got, b.events("VolumeConditionAbnormal"))
		}
		stop()
	})
}

// TestBudgetOfLists reads 10,000 volumes by pages: the calls are pages, and one for each volume that was abnormal and is listed no more.
func TestBudgetOfLists(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const volumes, pageSize = 10_000, 500
		b := newBed(t, []csi.ControllerServiceCapability_RPC_Type{list, getVolume, condition}, names(volumes)...)
		b.driver.LimitPages(pageSize)
		stop := b.launch(quiet(), "host-1")
		pass(20 * time.Minute)
		// The list of 20 pages takes 2 seconds of a period of 5 minutes.
		if pages, gets := b.calls("ListVolumes"), b.calls("ControllerGetVolume"); pages != 4*volumes/pageSize || gets != 0 {
			t.Errorf("%d pages and %d single calls in 20 minutes, want %d and none", pages, gets, 4*volumes/pageSize)
		}
		stop()
	})
}

// TestSmallFleet spreads the calls for few volumes over the interval: the budget is a maximum, no target.
func TestSmallFleet(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBed(t, []csi.ControllerServiceCapability_RPC_Type{getHealth}, names(6)...)
		stop := b.launch(quiet(), "host-1")
		for minute := 1; minute <= 5; minute++ {
			pass(25 * time.Second)
			if got, want := b.calls("ControllerGetVolumeHealth"), 6*minute-3; got != want {
				t.Errorf("%d calls after 25 seconds of minute %d, want %d", got, minute, want)
			}
			pass(35 * time.Second)
		}
		stop()
	})
}

// TestManyAbnormal reports a failure of the storage that all volumes share: at most the workers' number of writes at a time, and one for each claim.
func TestManyAbnormal(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const volumes = 500
		b := newBed(t, []csi.ControllerServiceCapability_RPC_Type{getHealth, listHealth}, names(volumes)...)
		for _, name := range names(volumes) {
			b.driver.SetHealth("vol-"+name, problem(csi.VolumeHealthErrorType_INACCESSIBLE, "ArrayDown"))
		}
		used := sidecartest.Count(b.cluster)
		stop := b.launch(quiet(), "host-1")
		pass(30 * time.Minute)
		if got := used()["patch persistentvolumeclaims/status"]; got != volumes {
			t.Errorf("%d writes of statuses in six sweeps, want one for each of %d claims", got, volumes)
		}
		if got := b.events("VolumeConditionAbnormal"); got != volumes {
			t.Errorf("%d events, want %d", got, volumes)
		}
		stop()
	})
}

// TestDroppedStatus has an API server without the field healthStatus: the events are written, the status is tried once an hour and not with each sweep.
func TestDroppedStatus(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBed(t, []csi.ControllerServiceCapability_RPC_Type{getHealth}, "data")
		b.driver.SetHealth("vol-data", problem(csi.VolumeHealthErrorType_DEGRADED, "PathLost"))
		used := sidecartest.Count(b.cluster)
		client := olderServer{b.cluster.Client()}
		o, err := parse()
		if err != nil {
			t.Fatal(err)
		}
		config := inMemory(o, client, "host-1")
		config.CSI.Conn = b.driver.Conn()
		ctx, cancel := context.WithCancel(quiet())
		ended := make(chan error, 1)
		go func() { ended <- sidecar.Run(ctx, config) }()
		pass(90 * time.Minute)
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
		if got := used()["patch persistentvolumeclaims/status"]; got != 2 || b.events("VolumeConditionAbnormal") != 1 {
			t.Errorf("%d writes of the status and %d events in 90 minutes, want 2 and 1", got, b.events("VolumeConditionAbnormal"))
		}
	})
}

// olderServer drops healthStatus, as Kubernetes 1.36 does.
type olderServer struct{ kube.Client }

func (s olderServer) PersistentVolumeClaims(namespace string) kube.PersistentVolumeClaims {
	return olderClaims{s.Client.PersistentVolumeClaims(namespace)}
}

type olderClaims struct{ kube.PersistentVolumeClaims }

func (c olderClaims) Patch(
	ctx context.Context, name string, _ types.PatchType, _ []byte, opts metav1.PatchOptions, subresources ...string,
) (*corev1.PersistentVolumeClaim, error) {
	return c.PersistentVolumeClaims.Patch(ctx, name, types.MergePatchType, []byte(`{}`), opts, subresources...)
}

// TestLostLease hands over to another instance: it knows what was reported, and reports the recovery.
func TestLostLease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBed(t, []csi.ControllerServiceCapability_RPC_Type{getVolume, condition}, "data")
		b.driver.SetCondition("vol-data", true, "the disk is gone")
		first := b.launch(quiet(), "host-1", "--leader-election", "--leader-election-namespace=ns")
		pass(time.Second) // names of events are made of the time at which an instance was started
		second := b.launch(quiet(), "host-2", "--leader-election", "--leader-election-namespace=ns")
		pass(5*time.Minute + time.Second)
		first()
		pass(5 * time.Minute)
		if got := b.events("VolumeConditionAbnormal"); got != 1 {
			t.Errorf("%d events about one problem, want 1", got)
		}
		b.driver.SetCondition("vol-data", false, "")
		pass(2 * time.Minute)
		if got := b.events("VolumeConditionNormal"); got != 1 {
			t.Errorf("%d events about the recovery, want 1", got)
		}
		second()
	})
}

// TestHungDriver has calls that hang: at most the workers' number at a time, nothing is reported as recovered, and a stop does not wait for them.
func TestHungDriver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBed(t, []csi.ControllerServiceCapability_RPC_Type{getHealth}, names(100)...)
		b.driver.SetHealth("vol-c00001", problem(csi.VolumeHealthErrorType_DEGRADED, "PathLost"))
		stop := b.launch(quiet(), "host-1", "--worker-threads=3")
		pass(2 * time.Minute)
		b.driver.Inject(csitest.Fault{Hang: true})
		pass(10 * time.Minute)
		running := 0
		for _, call := range b.driver.Calls() {
			if !call.Done && call.Method != "Probe" { // that asks whether the driver answers at all
				running++
			}
		}
		if running != 3 || b.events("VolumeConditionNormal") != 0 {
			t.Errorf("%d calls at a time and %d recoveries, want 3 and none", running, b.events("VolumeConditionNormal"))
		}
		start := time.Now()
		stop()
		if took := time.Since(start); took > time.Second {
			t.Errorf("the stop took %v", took)
		}
	})
}
