// A member of a group, made of JGroups 5.x, that does what standard input says.
//
//   java -cp jgroups.jar:. Member5 CONFIG CLUSTER NAME
//
// In, one line each:   all TEXT | to NAME TEXT | large NAME|* SIZE | burst COUNT TEXT | leave
//                      plain UUID|* TEXT, a message that no protocol numbers or sends again
// Out, one line each:  view NAME,NAME... | got FROM TEXT | large FROM SIZE SUM
// The end of standard input ends it at once.

import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.util.stream.Collectors;
import java.util.zip.CRC32;

import org.jgroups.Address;
import org.jgroups.BytesMessage;
import org.jgroups.JChannel;
import org.jgroups.Message;
import org.jgroups.Receiver;
import org.jgroups.View;
import org.jgroups.util.UUID;

public class Member5 implements Receiver {
    private final JChannel channel;

    private Member5(JChannel channel) {
        this.channel = channel;
    }

    public static void main(String[] args) throws Exception {
        try (JChannel channel = new JChannel(args[0])) {
            Member5 member = new Member5(channel);
            channel.setName(args[2]);
            channel.setReceiver(member);
            channel.connect(args[1]);
            say("connected");
            member.obey();
        }
        System.exit(0);
    }

    private void obey() throws Exception {
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in));
        while (true) {
            String line = in.readLine();
            if (line == null)
                Runtime.getRuntime().halt(3);
            String[] words = line.split(" ", 3);
            switch (words[0]) {
                case "all": send(null, text(line.substring(4))); break;
                case "to": send(find(words[1]), text(words[2])); break;
                case "plain": sendPlain(words[1], text(words[2])); break;
                case "large": send(find(words[1]), large(Integer.parseInt(words[2]))); break;
                case "burst":
                    for (int i = 0; i < Integer.parseInt(words[1]); i++)
                        send(null, text(words[2] + i));
                    break;
                case "leave": return;
                default: throw new IllegalArgumentException(line);
            }
        }
    }

    private void send(Address to, byte[] bytes) throws Exception {
        channel.send(to, bytes);
    }

    private void sendPlain(String to, byte[] bytes) throws Exception {
        Address address = to.equals("*") ? null : UUID.fromString(to);
        channel.send(new BytesMessage(address, bytes).setFlag(Message.Flag.OOB,
            Message.Flag.NO_RELIABILITY, Message.Flag.NO_FC, Message.Flag.DONT_BUNDLE));
    }

    private Address find(String name) {
        if (name.equals("*"))
            return null;
        for (Address member : channel.getView().getMembers())
            if (member.toString().equals(name))
                return member;
        throw new IllegalArgumentException("nobody is called " + name);
    }

    static byte[] text(String text) {
        return ("t" + text).getBytes(StandardCharsets.UTF_8);
    }

    static byte[] large(int size) {
        byte[] bytes = new byte[size];
        for (int i = 0; i < size; i++)
            bytes[i] = (byte) (i * 31 + (i >> 8));
        bytes[0] = 'L';
        return bytes;
    }

    @Override
    public void receive(Message message) {
        byte[] bytes = message.getArray();
        int from = message.getOffset(), size = message.getLength();
        String who = message.getSrc().toString();
        if (bytes[from] == 't') {
            say("got " + who + " " + new String(bytes, from + 1, size - 1, StandardCharsets.UTF_8));
            return;
        }
        CRC32 sum = new CRC32();
        sum.update(bytes, from, size);
        say("large " + who + " " + size + " " + sum.getValue());
    }

    @Override
    public void viewAccepted(View view) {
        say("view " + view.getMembers().stream().map(Address::toString)
            .collect(Collectors.joining(",")));
    }

    private static synchronized void say(String line) {
        System.out.println(line);
        System.out.flush();
    }
}
