package stats

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/encoding/protowire"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/longshore-csi/longshore/kubeletplugin/volume"
)

var errBroken = errors.New("broken")

// fakeDriver answers the calls about statistics and health; a function that is nil is one that the driver does not have.
type fakeDriver struct {
	csi.NodeClient

	mu     sync.Mutex // of what follows
	stats  func(*csi.NodeGetVolumeStatsRequest) (*csi.NodeGetVolumeStatsResponse, error)
	health func(*csi.NodeGetVolumeHealthRequest) (*csi.NodeGetVolumeHealthResponse, error)
	// old has the driver announce VOLUME_CONDITION.
	old bool
	// away has the driver be missing.
	away  error
	calls int
	// hang replaces stats, without the mutex.
	hang func(context.Context, *csi.NodeGetVolumeStatsRequest) (*csi.NodeGetVolumeStatsResponse, error)
}

func (d *fakeDriver) NodeGetVolumeStats(ctx context.Context, r *csi.NodeGetVolumeStatsRequest, _ ...grpc.CallOption) (*csi.NodeGetVolumeStatsResponse, error) {
	if d.hang != nil {
		return d.hang(ctx, r)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.calls++
	return d.stats(r)
}

func (d *fakeDriver) NodeGetVolumeHealth(_ context.Context, r *csi.NodeGetVolumeHealthRequest, _ ...grpc.CallOption) (*csi.NodeGetVolumeHealthResponse, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.health(r)
}

// change changes the driver.
func (d *fakeDriver) change(f func()) {
	d.mu.Lock()
	defer d.mu.Unlock()
	f()
}

func (d *fakeDriver) Node() csi.NodeClient { return d }

func (d *fakeDriver) NodeCapabilities(context.Context) (map[csi.NodeServiceCapability_RPC_Type]bool, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return map[csi.NodeServiceCapability_RPC_Type]bool{
		csi.NodeServiceCapability_RPC_STAGE_UNSTAGE_VOLUME: true,
		csi.NodeServiceCapability_RPC_GET_VOLUME_STATS:     d.stats != nil || d.hang != nil,
		csi.NodeServiceCapability_RPC_GET_VOLUME_HEALTH:    d.health != nil,
		conditionCapability: d.old,
	}, nil
}

func (d *fakeDriver) RequiresPublishPod() bool { return false }

func (d *fakeDriver) Driver(string) (volume.Driver, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d, d.away
}

func (d *fakeDriver) Last(name string) (volume.Driver, error) { return d.Driver(name) }

// recorder keeps events.
type recorder []string

func (r *recorder) Condition(pod volume.Pod, reason, message string) {
	*r = append(*r, pod.Name+" "+reason+" "+message)
}

// usage answers with a usage.
func usage(*csi.NodeGetVolumeStatsRequest) (*csi.NodeGetVolumeStatsResponse, error) {
	return &csi.NodeGetVolumeStatsResponse{Usage: []*csi.VolumeUsage{
		{Unit: csi.VolumeUsage_BYTES, Total: 100, Used: 30, Available: 70}, {Unit: csi.VolumeUsage_INODES, Total: 10, Used: 4, Available: 6},
	}}, nil
}

// condition adds a VolumeCondition of CSI v1.12 to a usage.
func condition(abnormal bool, message string) func(*csi.NodeGetVolumeStatsRequest) (*csi.NodeGetVolumeStatsResponse, error) {
	return func(*csi.NodeGetVolumeStatsRequest) (*csi.NodeGetVolumeStatsResponse, error) {
		var c, f []byte
		c = protowire.AppendVarint(protowire.AppendTag(c, abnormalField, protowire.VarintType), protowire.EncodeBool(abnormal))
		c = protowire.AppendString(protowire.AppendTag(c, messageField, protowire.BytesType), message)
		f = protowire.AppendBytes(protowire.AppendTag(f, conditionField, protowire.BytesType), c)
		answer := &csi.NodeGetVolumeStatsResponse{}
		answer.ProtoReflect().SetUnknown(f)
		return answer, nil
	}
}

// health answers with problems, as pairs of a reason and a message.
func health(pairs ...string) func(*csi.NodeGetVolumeHealthRequest) (*csi.NodeGetVolumeHealthResponse, error) {
	return func(*csi.NodeGetVolumeHealthRequest) (*csi.NodeGetVolumeHealthResponse, error) {
		h := &csi.VolumeHealth{}
		for i := 0; i < len(pairs); i += 2 {
			h.HealthStatuses = append(h.HealthStatuses, &csi.VolumeHealth_VolumeHealthEntry{Reason: pairs[i], Message: pairs[i+1]})
		}
		return &csi.NodeGetVolumeHealthResponse{VolumeHealth: h}, nil
	}
}

func published(pod, claim string) volume.Published {
	return volume.Published{
		Volume: volume.Volume{Name: "v", Driver: "d", Handle: "h"}, Pod: volume.Pod{Namespace: "ns", Name: pod, UID: types.UID("uid-" + pod)},
		Claim: volume.Claim{Namespace: "ns", Name: claim}, Key: volume.Key{Pod: types.UID("uid-" + pod), SpecName: "pv"}, Path: "/pods/" + pod, Staging: "/staging",
	}
}

// bench runs a Collector in a bubble until the function returns.
func bench(t *testing.T, d *fakeDriver, list func() []volume.Published, do func(t *testing.T, c *Collector, events *recorder)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		events := &recorder{}
		c, err := New(Config{Published: list, Drivers: d, Events: events, Spread: func() float64 { return 0 }})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- c.Run(ctx) }()
		synctest.Wait()
		do(t, c, events)
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
}

// pass lets time pass, and the Collector do what it does until then.
func pass(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

// TestUsage asks once an interval, with the paths of the volume, and forgets it when it is gone.
func TestUsage(t *testing.T) {
	var asked *csi.NodeGetVolumeStatsRequest
	d := &fakeDriver{stats: func(r *csi.NodeGetVolumeStatsRequest) (*csi.NodeGetVolumeStatsResponse, error) {
		asked = r
		return usage(r)
	}}
	list := []volume.Published{published("a", "data")}
	listed := func() []volume.Published {
		d.mu.Lock()
		defer d.mu.Unlock()
		return slices.Clone(list)
	}
	bench(t, d, listed, func(t *testing.T, c *Collector, _ *recorder) {
		if asked.GetVolumeId() != "h" || asked.GetVolumePath() != "/pods/a" || asked.GetStagingTargetPath() != "/staging" {
			t.Errorf("asked for %v", asked)
		}
		latest := c.Latest()
		if len(latest) != 1 || !cmp.Equal(latest[0].Bytes, &volume.Space{Capacity: 100, Used: 30, Available: 70}) || !cmp.Equal(latest[0].Inodes, &volume.Space{Capacity: 10, Used: 4, Available: 6}) || latest[0].Health {
			t.Errorf("known is %+v", latest)
		}
		pass(10 * time.Minute)
		if d.calls < 9 || d.calls > 12 {
			t.Errorf("%d calls in ten minutes", d.calls)
		}
		d.change(func() {
			d.stats = func(*csi.NodeGetVolumeStatsRequest) (*csi.NodeGetVolumeStatsResponse, error) { return nil, errBroken }
		})
		pass(2 * time.Minute)
		if latest := c.Latest(); !errors.Is(latest[0].Err, errBroken) || latest[0].Bytes == nil {
			t.Errorf("after a failure %+v", latest)
		}
		d.change(func() {
			list[0].Volume.Ephemeral = true
			d.stats = func(r *csi.NodeGetVolumeStatsRequest) (*csi.NodeGetVolumeStatsResponse, error) {
				asked = r
				return &csi.NodeGetVolumeStatsResponse{}, nil
			}
		})
		pass(2 * time.Minute)
		if latest := c.Latest(); asked.GetStagingTargetPath() != "" || latest[0].Err == nil || !strings.Contains(latest[0].Err.Error(), "no usage") {
			t.Errorf("an inline volume: asked for %v, known is %+v", asked, latest)
		}
		d.change(func() { list = nil })
		pass(2 * time.Minute)
		if latest := c.Latest(); len(latest) > 0 {
			t.Errorf("after the pod is gone %+v", latest)
		}
	})
}

// TestLatestOf has the usage of the volumes of one pod, until it is gone.
func TestLatestOf(t *testing.T) {
	d := &fakeDriver{stats: usage}
	other := published("a", "logs")
	other.Key.SpecName = "pv-2"
	list := []volume.Published{published("a", "data"), other, published("b", "data")}
	listed := func() []volume.Published {
		d.mu.Lock()
		defer d.mu.Unlock()
		return slices.Clone(list)
	}
	bench(t, d, listed, func(t *testing.T, c *Collector, _ *recorder) {
		check := func(when string, want map[types.UID][]string) {
			t.Helper()
			got := map[types.UID][]string{}
			for _, pod := range []types.UID{"uid-a", "uid-b", "uid-c"} {
				for _, u := range c.LatestOf(pod) {
					got[pod] = append(got[pod], u.Claim.Name)
				}
				slices.Sort(got[pod])
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("%s (-want +got):\n%s", when, diff)
			}
		}
		check("all pods", map[types.UID][]string{"uid-a": {"data", "logs"}, "uid-b": {"data"}})
		d.change(func() { list = list[1:2] })
		pass(2 * time.Minute)
		check("after a volume and a pod are gone", map[types.UID][]string{"uid-a": {"logs"}})
	})
}

// TestConditions sends an event when the condition changes, for both generations of health.
func TestConditions(t *testing.T) {
	tests := map[string]struct {
		set  func(d *fakeDriver, sick string)
		want []string
	}{
		"VolumeCondition": {
			set:  func(d *fakeDriver, sick string) { d.old, d.stats = true, condition(sick != "", sick) },
			want: []string{"a VolumeConditionAbnormal volume pv: slow", "a VolumeConditionAbnormal volume pv: dead", "a VolumeConditionNormal volume pv: the driver reports no problem any more"},
		},
		"Health": {
			set: func(d *fakeDriver, sick string) {
				d.health = health()
				if sick != "" {
					d.health = health("Sick", sick, "Late", "by hours")
				}
			},
			want: []string{
				"a VolumeConditionAbnormal volume pv: Sick: slow; Late: by hours", "a VolumeConditionAbnormal volume pv: Sick: dead; Late: by hours",
				"a VolumeConditionNormal volume pv: the driver reports no problem any more",
			},
		},
		"Both": {
			set: func(d *fakeDriver, sick string) {
				d.old, d.stats, d.health = true, condition(true, "of the old kind"), health()
				if sick != "" {
					d.health = health("Sick", sick)
				}
			},
			want: []string{
				"a VolumeConditionAbnormal volume pv: Sick: slow", "a VolumeConditionAbnormal volume pv: Sick: dead",
				"a VolumeConditionNormal volume pv: the driver reports no problem any more",
			},
		},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			d := &fakeDriver{}
			tc.set(d, "")
			bench(t, d, func() []volume.Published { return []volume.Published{published("a", "data")} }, func(t *testing.T, c *Collector, events *recorder) {
				for _, sick := range []string{"", "slow", "slow", "dead", "", ""} {
					d.change(func() { tc.set(d, sick) })
					pass(2 * time.Minute)
					if latest := c.Latest(); !latest[0].Health || len(latest[0].Conditions) > 0 != (sick != "") {
						t.Errorf("the volume is %q: known is %+v", sick, latest)
					}
				}
				if diff := cmp.Diff(tc.want, []string(*events)); diff != "" {
					t.Errorf("events (-want +got):\n%s", diff)
				}
			})
		})
	}
}

// TestFailuresKeepTheCondition: a driver that does not answer does not make a volume well.
func TestFailuresKeepTheCondition(t *testing.T) {
	d := &fakeDriver{health: health("Sick", "slow")}
	bench(t, d, func() []volume.Published { return []volume.Published{published("a", "data")} }, func(t *testing.T, c *Collector, events *recorder) {
		d.change(func() {
			d.health = func(*csi.NodeGetVolumeHealthRequest) (*csi.NodeGetVolumeHealthResponse, error) { return nil, errBroken }
		})
		pass(2 * time.Minute)
		d.change(func() { d.away = errBroken })
		pass(2 * time.Minute)
		if latest := c.Latest(); len(latest[0].Conditions) != 1 || latest[0].Err == nil || len(*events) != 1 {
			t.Errorf("known is %+v, events are %q", latest, *events)
		}
	})
}

// TestHealthIsTheCallers: a caller that reports health gets the first answer and each change, with categories, and there are neither events nor a metric of it.
func TestHealthIsTheCallers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		events, called := &recorder{}, []types.UID{}
		d := &fakeDriver{health: health()}
		c, err := New(Config{
			Published: func() []volume.Published { return []volume.Published{published("a", "data")} }, Drivers: d, Events: events,
			Health: func(pod types.UID) { called = append(called, pod) }, Spread: func() float64 { return 0 },
		})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- c.Run(ctx) }()
		pass(2 * time.Minute)
		answer := func(category csi.VolumeHealthErrorType) {
			d.change(func() {
				d.health = func(*csi.NodeGetVolumeHealthRequest) (*csi.NodeGetVolumeHealthResponse, error) {
					return &csi.NodeGetVolumeHealthResponse{VolumeHealth: &csi.VolumeHealth{
						HealthStatuses: []*csi.VolumeHealth_VolumeHealthEntry{{Status: category, Reason: "Sick"}},
					}}, nil
				}
			})
			pass(2 * time.Minute)
		}
		for _, tc := range []struct {
			category csi.VolumeHealthErrorType
			want     corev1.VolumeHealthStatusType
		}{
			{csi.VolumeHealthErrorType_UNKNOWN_VOLUME_HEALTH_TYPE, ""},
			{csi.VolumeHealthErrorType_INACCESSIBLE, corev1.VolumeHealthInaccessible},
			{csi.VolumeHealthErrorType_DATA_LOSS, corev1.VolumeHealthDataLoss},
			{csi.VolumeHealthErrorType_DEGRADED, corev1.VolumeHealthDegraded},
		} {
			answer(tc.category)
			if diff := cmp.Diff([]volume.Condition{{Status: tc.want, Reason: "Sick"}}, c.Latest()[0].Conditions); diff != "" {
				t.Errorf("conditions (-want +got):\n%s", diff)
			}
		}
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
		if len(called) != 5 || len(*events) > 0 {
			t.Errorf("called with %v, events %v; want five calls and no event", called, *events)
		}
		if n := testutil.CollectAndCount(c); n > 0 {
			t.Errorf("%d metrics of a volume without a usage, want none", n)
		}
	})
}

// TestMalformedCondition names an answer that cannot be read.
func TestMalformedCondition(t *testing.T) {
	d := &fakeDriver{old: true, stats: func(*csi.NodeGetVolumeStatsRequest) (*csi.NodeGetVolumeStatsResponse, error) {
		answer := &csi.NodeGetVolumeStatsResponse{}
		answer.ProtoReflect().SetUnknown(protowire.AppendBytes(protowire.AppendTag(nil, conditionField, protowire.BytesType), []byte{0xff}))
		return answer, nil
	}}
	bench(t, d, func() []volume.Published { return []volume.Published{published("a", "data")} }, func(t *testing.T, c *Collector, _ *recorder) {
		if latest := c.Latest(); len(latest) != 1 || latest[0].Err == nil || !strings.Contains(latest[0].Err.Error(), "VolumeCondition") {
			t.Errorf("known is %+v", latest)
		}
	})
}

// TestMetrics has the names and labels of a kubelet's, each claim once, and no inline volume.
func TestMetrics(t *testing.T) {
	inline := published("c", "")
	inline.Volume.Name, inline.Claim = "inline", volume.Claim{}
	d := &fakeDriver{stats: usage, health: health("Sick", "slow")}
	list := []volume.Published{published("a", "data"), published("b", "data"), inline}
	bench(t, d, func() []volume.Published { return list }, func(t *testing.T, c *Collector, _ *recorder) {
		reg := prometheus.NewPedanticRegistry()
		if err := reg.Register(c); err != nil {
			t.Fatal(err)
		}
		want := ""
		for _, m := range []struct{ name, help, value string }{
			{"available_bytes", "Free bytes of the volume.", "70"},
			{"capacity_bytes", "Size of the volume in bytes.", "100"},
			{"health_status_abnormal", "1 if the driver reports a problem of the volume, 0 if it reports none.", "1"},
			{"inodes", "Number of inodes of the volume.", "10"},
			{"inodes_free", "Free inodes of the volume.", "6"},
			{"inodes_used", "Used inodes of the volume.", "4"},
			{"used_bytes", "Used bytes of the volume.", "30"},
		} {
			name := "kubelet_volume_stats_" + m.name
			want += "# HELP " + name + " " + m.help + "\n# TYPE " + name + " gauge\n" + name + `{namespace="ns",persistentvolumeclaim="data"} ` + m.value + "\n"
		}
		if err := testutil.GatherAndCompare(reg, strings.NewReader(want)); err != nil {
			t.Error(err)
		}
	})
}

// TestConfig names what is missing.
func TestConfig(t *testing.T) {
	for _, c := range []Config{{}, {Published: func() []volume.Published { return nil }, Drivers: &fakeDriver{}, Interval: -1}} {
		if _, err := New(c); err == nil {
			t.Errorf("%+v is accepted", c)
		}
	}
}

// TestHungVolumes: volumes whose calls never end starve neither another driver's nor more than a few of their own, and are not asked twice at a time. What was
// measured long ago disappears.
func TestHungVolumes(t *testing.T) {
	var (
		mu             sync.Mutex
		hangs          = map[string]int{}
		most, answered int
		dead           bool
	)
	d := &fakeDriver{}
	d.hang = func(ctx context.Context, r *csi.NodeGetVolumeStatsRequest) (*csi.NodeGetVolumeStatsResponse, error) {
		mu.Lock()
		id := r.GetVolumeId()
		if !dead || !strings.HasPrefix(id, "hung") {
			answered++
			mu.Unlock()
			return usage(r)
		}
		hangs[id]++
		if hangs[id] > 1 {
			t.Errorf("%s is asked while another call for it runs", id)
		}
		most = max(most, len(hangs))
		mu.Unlock()
		<-ctx.Done()
		mu.Lock()
		defer mu.Unlock()
		delete(hangs, id)
		return nil, ctx.Err()
	}
	var all []volume.Published
	for i := range 100 {
		p := published(fmt.Sprint("hung-", i), "")
		p.Volume.Driver, p.Volume.Handle = "hung", fmt.Sprint("hung-", i)
		all = append(all, p)
	}
	all = append(all, published("good", "claim"))
	bench(t, d, func() []volume.Published { return all }, func(t *testing.T, c *Collector, _ *recorder) {
		pass(10 * time.Minute)
		mu.Lock()
		dead, answered = true, 0
		mu.Unlock()
		pass(time.Hour)
		mu.Lock()
		defer mu.Unlock()
		if answered < 30 || most > atOnce {
			t.Errorf("in an hour the healthy volume was asked %d times, and %d calls hung at a time", answered, most)
		}
		for _, r := range c.Latest() {
			if hung := strings.HasPrefix(r.Volume.Handle, "hung"); hung == (r.Bytes != nil) {
				t.Errorf("volume %s has %+v, error %v", r.Volume.Handle, r.Bytes, r.Err)
			}
		}
	})
}
