package kubeletplugintest

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"testing"

	"github.com/longshore-csi/longshore/kubeletplugin/fault"
)

// Run goes through what happens to volumes on a node, each in a subtest with a driver that newDriver has started for it. A driver without a controller service
// is tested with inline volumes alone.
func Run(t *testing.T, newDriver func(t *testing.T) Config) {
	t.Helper()
	for name, scenario := range map[string]func(*world){
		"Life": (*world).life, "Restarts": (*world).restarts, "LostAnswers": (*world).lostAnswers, "Killed": (*world).killed,
		"ForcedDeletion": (*world).forcedDeletion, "DriverRestarts": (*world).driverRestarts,
	} {
		t.Run(name, func(t *testing.T) {
			w := &world{Kubelet: New(t, newDriver(t))}
			if w.controller != nil {
				w.data = w.CreateVolume("data")
				w.volumes = append(w.volumes, w.data)
			}
			if w.cfg.Inline != nil {
				w.volumes = append(w.volumes, w.InlineVolume("scratch"))
			}
			if len(w.volumes) == 0 {
				t.Fatal("the driver has neither a controller service nor Config.Inline: there is no volume")
			}
			scenario(w)
			if w.controller != nil {
				w.DeleteVolume(w.data)
			}
			w.CheckClean()
		})
	}
}

// world is a kubelet with the volumes of a pod.
type world struct {
	*Kubelet

	data    Volume
	volumes []Volume
}

// life has one pod after the other use the volumes, and, where the driver allows that, two at the same time.
func (w *world) life() {
	first := w.StartPod("first", w.volumes...)
	w.write(first, "first")
	if w.many || w.controller == nil {
		second := w.StartPod("second", w.volumes...)
		w.StopPod(first)
		first = second
	}
	w.StopPod(first)
	last := w.StartPod("last", w.volumes...)
	w.holds(last, "first")
	w.StopPod(last)
}

// restarts has the kubelet, and the driver if it can be, end and start between all steps.
func (w *world) restarts() {
	pod := w.StartPod("pod", w.volumes...)
	w.write(pod, "text")
	w.Restart()
	w.holds(pod, "text")
	w.restartDriver()
	w.Restart()
	w.holds(pod, "text")
	w.StopPod(pod)
	w.Restart()
}

// lostAnswers has each call take effect without an answer.
func (w *world) lostAnswers() {
	for _, method := range []string{"NodeStageVolume", "NodePublishVolume", "NodeUnpublishVolume", "NodeUnstageVolume"} {
		if !w.stages && (method == "NodeStageVolume" || method == "NodeUnstageVolume") || w.controller == nil && method == "NodeUnstageVolume" {
			continue
		}
		w.LoseAnswer(method)
		w.StopPod(w.StartPod("without-answer", w.volumes...))
		if w.log.pending(method) && w.controller != nil {
			w.t.Errorf("%s was never called", method)
		}
	}
}

// killed kills the kubelet between any two of its effects, on the way up and on the way down.
func (w *world) killed() {
	struck := map[fault.Point]bool{}
	for _, point := range points(true) {
		w.KillAt(point)
		pod := w.CreatePod("killed-at-"+string(point), w.volumes...)
		w.mountUntilDeath(pod)
		struck[point] = w.Died()
		w.Restart() // which waits for the volumes
		w.StopPod(pod)
	}
	for _, point := range points(false) {
		pod := w.StartPod("killed-at-"+string(point), w.volumes...)
		w.KillAt(point)
		w.stopUntilDeath(pod)
		struck[point] = w.Died()
		w.Restart() // which unmounts what is left
	}
	for _, point := range []fault.Point{fault.AfterTargetRecord, fault.AfterPublish, fault.AfterUnpublish, fault.AfterTargetRemoval} {
		if !struck[point] {
			w.t.Errorf("the kubelet never came to %s: the test shows nothing", point)
		}
	}
}

// forcedDeletion deletes pods while the kubelet is down.
func (w *world) forcedDeletion() {
	pod := w.StartPod("deleted", w.volumes...)
	w.Kill()
	w.ForgetPod(pod)
	w.restartDriver()
	w.Start()
	w.StopPod(w.StartPod("next", w.volumes...))
}

// driverRestarts restarts the driver under a pod.
func (w *world) driverRestarts() {
	pod := w.StartPod("pod", w.volumes...)
	w.write(pod, "text")
	w.restartDriver()
	w.holds(pod, "text")
	w.StopPod(pod)
	w.restartDriver()
	w.StopPod(w.StartPod("next", w.volumes...))
}

func (w *world) restartDriver() {
	if w.cfg.Restart != nil {
		w.cfg.Restart()
	}
}

// write writes a text into each volume of a pod that is mounted by the kernel: a driver may be tested without privileges.
func (w *world) write(p *Pod, text string) {
	w.t.Helper()
	for _, v := range w.volumes {
		if !mounted(p.Path(v)) {
			continue
		}
		if err := w.store(v, p.Path(v), text); err != nil {
			w.t.Errorf("write to volume %q: %v", v.Name, err)
		}
	}
}

// holds checks that the persistent volume of a pod has a text, if the driver mounts by the kernel.
func (w *world) holds(p *Pod, text string) {
	w.t.Helper()
	if w.controller == nil || !mounted(p.Path(w.data)) {
		return
	}
	found, err := w.load(p.Path(w.data), len(text))
	if err != nil || found != text {
		w.t.Errorf("volume %q has %q, %v; want %q", w.data.Name, found, err, text)
	}
}

// store writes a text into a file of a volume, or to the beginning of a device.
func (w *world) store(v Volume, path, text string) error {
	if v.Inline || !w.cfg.Block {
		return os.WriteFile(filepath.Join(path, "text"), []byte(text), 0o600)
	}
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	_, err = f.WriteString(text)
	return errors.Join(err, f.Sync(), f.Close())
}

// load reads what store has written into the persistent volume.
func (w *world) load(path string, size int) (string, error) {
	if !w.cfg.Block {
		text, err := os.ReadFile(filepath.Join(path, "text"))
		return string(text), err
	}
	f, err := os.Open(path)
	if err != nil {
		return "", err
	}
	text := make([]byte, size)
	_, err = io.ReadFull(f, text)
	return string(text), errors.Join(err, f.Close())
}
