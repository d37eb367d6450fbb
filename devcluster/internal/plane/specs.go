package plane

import (
	"slices"
	"strconv"

	"github.com/longshore-csi/longshore/devcluster/internal/proc"
)

// EtcdSpec runs etcd. It does not wait for the disk: a development cluster does not outlive its machine's crash.
func (p *Plane) EtcdSpec() proc.Spec {
	client, peer := "https://"+p.Address(Etcd), "https://"+p.Address("etcd-peer")
	return p.spec(Etcd, "/health",
		"--name=devcluster", "--data-dir="+p.dir.Etcd(), "--unsafe-no-fsync", "--log-level=warn",
		"--listen-client-urls="+client, "--advertise-client-urls="+client,
		"--listen-peer-urls="+peer, "--initial-advertise-peer-urls="+peer, "--initial-cluster=devcluster="+peer,
		"--client-cert-auth", "--trusted-ca-file="+p.etcdCA.File(), "--cert-file="+p.etcd.CertFile, "--key-file="+p.etcd.KeyFile,
		"--peer-client-cert-auth", "--peer-trusted-ca-file="+p.etcdCA.File(), "--peer-cert-file="+p.etcd.CertFile, "--peer-key-file="+p.etcd.KeyFile,
	)
}

// APIServerSpec runs the API server, with the Node authorizer and NodeRestriction as in a real cluster.
func (p *Plane) APIServerSpec() proc.Spec {
	spec := p.spec(APIServer, "/readyz",
		"--bind-address=127.0.0.1", "--advertise-address=127.0.0.1", p.securePort(APIServer),
		"--tls-cert-file="+p.serving.CertFile, "--tls-private-key-file="+p.serving.KeyFile, "--client-ca-file="+p.ca.File(),
		"--etcd-servers=https://"+p.Address(Etcd), "--etcd-cafile="+p.etcdCA.File(),
		"--etcd-certfile="+p.etcd.CertFile, "--etcd-keyfile="+p.etcd.KeyFile,
		"--authorization-mode=Node,RBAC", "--enable-admission-plugins=NodeRestriction", "--allow-privileged=true",
		"--service-account-issuer="+issuer, "--service-account-key-file="+p.accounts.CertFile, "--service-account-signing-key-file="+p.accounts.KeyFile,
		"--service-cluster-ip-range=10.0.0.0/24",
		// Nothing runs behind Services here, and two cores are few.
		"--endpoint-reconciler-type=none", "--profiling=false",
	)
	if p.audit { // in one file, whatever its size: who counts wants all of it
		spec.Args = append(spec.Args, "--audit-policy-file="+p.dir.Config("audit.yaml"), "--audit-log-path="+p.dir.Log("audit"), "--audit-log-maxsize=0")
	}
	spec.Args = append(spec.Args, p.gates...)
	return spec
}

// ControllerManagerSpec runs the controllers, the attach/detach and the persistent volume controllers among them.
func (p *Plane) ControllerManagerSpec() proc.Spec {
	kubeconfig := p.dir.UserKubeconfig(ControllerManager)
	return p.spec(ControllerManager, "/healthz", append(slices.Concat(p.gates, p.controllers),
		"--kubeconfig="+kubeconfig, "--authentication-kubeconfig="+kubeconfig, "--authorization-kubeconfig="+kubeconfig,
		"--bind-address=127.0.0.1", p.securePort(ControllerManager), "--tls-cert-file="+p.serving.CertFile, "--tls-private-key-file="+p.serving.KeyFile,
		"--service-account-private-key-file="+p.accounts.KeyFile, "--root-ca-file="+p.ca.File(),
		"--use-service-account-credentials=true", "--leader-elect=false", "--kube-api-qps=1000", "--kube-api-burst=2000", "--profiling=false",
	)...)
}

// SchedulerSpec runs the scheduler.
func (p *Plane) SchedulerSpec() proc.Spec {
	kubeconfig := p.dir.UserKubeconfig(Scheduler)
	return p.spec(Scheduler, "/healthz", append(p.gates,
		"--config="+p.dir.Config("scheduler.yaml"), "--authentication-kubeconfig="+kubeconfig, "--authorization-kubeconfig="+kubeconfig,
		"--bind-address=127.0.0.1", p.securePort(Scheduler), "--tls-cert-file="+p.serving.CertFile, "--tls-private-key-file="+p.serving.KeyFile,
	)...)
}

func (p *Plane) securePort(name string) string {
	return "--secure-port=" + strconv.Itoa(p.ports[name].number)
}
