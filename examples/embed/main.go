// Command embed mounts an inline and a persistent volume of a CSI driver without a kubelet and without an API server, shows where they are until it is
// interrupted, and unmounts them. Killed and started again, it finds them.
//
//	embed --driver hostpath.csi.k8s.io --endpoint unix:///run/hostpath/csi.sock --volume HANDLE --root /var/lib/embed
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/longshore-csi/longshore/kubeletplugin"
	"github.com/longshore-csi/longshore/kubeletplugin/resolve"
)

func main() {
	driver, endpoint := flag.String("driver", "", "`name` of the driver"), flag.String("endpoint", "", "the driver's `socket`")
	handle, root := flag.String("volume", "", "`id` of an existing volume"), flag.String("root", "", "`directory` for mounts and records")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, *driver, *endpoint, *handle, *root)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "embed:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, driver, endpoint, handle, root string) error {
	objects := &resolve.Static{}
	yes := true
	objects.AddDriver(&storagev1.CSIDriver{ObjectMeta: metav1.ObjectMeta{Name: driver}, Spec: storagev1.CSIDriverSpec{
		PodInfoOnMount:       &yes, // drivers learn from it which volumes are inline
		VolumeLifecycleModes: []storagev1.VolumeLifecycleMode{storagev1.VolumeLifecyclePersistent, storagev1.VolumeLifecycleEphemeral},
	}})
	volume := &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "pv"}}
	volume.Spec.AccessModes = []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}
	volume.Spec.CSI = &corev1.CSIPersistentVolumeSource{Driver: driver, VolumeHandle: handle}
	objects.AddVolume(volume, "default", "data")

	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "workload", UID: "workload-1"}}
	pod.Spec.Volumes = []corev1.Volume{
		{Name: "data", VolumeSource: corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "data"}}},
		{Name: "scratch", VolumeSource: corev1.VolumeSource{CSI: &corev1.CSIVolumeSource{Driver: driver}}},
	}
	pod.Spec.Containers = []corev1.Container{{Name: "main", VolumeMounts: []corev1.VolumeMount{{Name: "data"}, {Name: "scratch"}}}}

	plugin, err := kubeletplugin.New(kubeletplugin.Config{Node: "node", RootDir: root, Objects: objects})
	if err != nil {
		return err
	}
	working, stop := context.WithCancel(context.WithoutCancel(ctx)) // it has to unmount after ctx is done
	defer stop()
	if err := plugin.Start(working); err != nil {
		return err
	}
	err = plugin.Register(ctx, driver, endpoint)
	if err == nil {
		var mounts []kubeletplugin.Mount
		mounts, err = plugin.Mount(ctx, pod)
		for _, m := range mounts {
			fmt.Println(m.Volume, m.Path)
		}
		if err == nil {
			<-ctx.Done()
		}
		err = errors.Join(err, plugin.Unmount(working, pod.UID))
	}
	stop()
	return errors.Join(err, plugin.Wait())
}
