module github.com/longshore-csi/longshore/devcluster

go 1.26.0

require (
	github.com/google/go-cmp v0.7.0
	github.com/moby/sys/mountinfo v0.7.2
	golang.org/x/sync v0.23.0
	golang.org/x/sys v0.48.0
	k8s.io/api v0.37.2
	k8s.io/apimachinery v0.37.2
	k8s.io/client-go v0.37.2
	k8s.io/klog/v2 v2.140.0
	sigs.k8s.io/controller-runtime v0.25.2
	sigs.k8s.io/yaml v1.6.0
)

require (
	github.com/longshore-csi/longshore/attacher v0.0.0
	github.com/longshore-csi/longshore/csikit v0.0.0
	github.com/longshore-csi/longshore/hostpathdriver v0.0.0
	github.com/longshore-csi/longshore/kubeletplugin v0.0.0
	github.com/longshore-csi/longshore/livenessprobe v0.0.0
	github.com/longshore-csi/longshore/provisioner v0.0.0
	github.com/longshore-csi/longshore/registrar v0.0.0
	github.com/longshore-csi/longshore/topology v0.0.0
)

replace (
	github.com/longshore-csi/longshore/attacher => ../attacher
	github.com/longshore-csi/longshore/csikit => ../csikit
	github.com/longshore-csi/longshore/hostpathdriver => ../hostpathdriver
	github.com/longshore-csi/longshore/kubeletplugin => ../kubeletplugin
	github.com/longshore-csi/longshore/livenessprobe => ../livenessprobe
	github.com/longshore-csi/longshore/provisioner => ../provisioner
	github.com/longshore-csi/longshore/registrar => ../registrar
	github.com/longshore-csi/longshore/topology => ../topology
)
